"""SipHash-2-4, which names hosts in datagrams and signs probes and reports."""

from fabricpulse.core._siphash import siphash24


def test_reference_vectors() -> None:
    """The vectors of the paper's reference implementation: key 00..0f, messages of 0, 1 and 15 bytes."""
    key = bytes(range(16))
    assert siphash24(key, b"") == 0x726FDB47DD0E0E31
    assert siphash24(key, bytes(range(1))) == 0x74F839C593DC67FD
    assert siphash24(key, bytes(range(15))) == 0xA129CA6149BE45E5
