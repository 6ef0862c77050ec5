"""SipHash-2-4 of core/include/fabricpulse/siphash.h, by the vectors of its authors."""

from fabricpulse.clocksync._report_intake import siphash24


def test_siphash_reference_vectors():
    """Vectors of the reference implementation (key 00..0f, message 00..n-1)."""
    assert siphash24(bytes(range(16)), b"") == 0x726FDB47DD0E0E31
    assert siphash24(bytes(range(16)), bytes(range(1))) == 0x74F839C593DC67FD
    assert siphash24(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5
