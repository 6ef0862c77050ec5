"""CRC-32C as RFC 3720 defines it, by every way that this processor has (tests/native/plugin/crc32c.cc)."""

import random
import subprocess

import pytest
from tests.fixtures.native.crc32c import crc32c
from tests.fixtures.native.programs import native


def generated(seed: int, size: int) -> bytes:
    """What the program checks: the high bytes of a linear congruential generator."""
    data = bytearray()
    for _ in range(size):
        seed = (seed * 1664525 + 1013904223) & 0xFFFFFFFF
        data.append(seed >> 24)
    return bytes(data)


def test_the_reference_is_that_of_the_rfc() -> None:
    """RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.build
def test_every_way_gives_the_same_checksum() -> None:
    """Of any length, from odd addresses, and continued after a part."""
    dice = random.Random(3)
    edges = [0, 1, 7, 8, 9, 63, 64, 127, 128, 129, 191, 255, 256, 511, 512, 513, 767, 768, 1023, 4099]
    cases = [(dice.randrange(1 << 32), size, dice.randint(0, size)) for size in edges]
    cases += [(dice.randrange(1 << 32), dice.randrange(3000), dice.randrange(3000)) for _ in range(60)]
    done = subprocess.run(
        [native("plugin_crc32c")],
        input="".join(f"{seed} {size} {split}\n" for seed, size, split in cases),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(cases)
    for (seed, size, _), line in zip(cases, lines, strict=True):
        assert set(line.split()) == {f"{crc32c(generated(seed, size)):08x}"}, size
