"""CHANGELOG.md against the headers: it says which parts must be upgraded together."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INCLUDE = "include/fabricpulse"
VERSIONS = {
    "wire version is": ("nccl_plugin/src/core/wire.h", r"kWireVersion = (\d+)"),
    "Clock page version": (f"core/{INCLUDE}/clock_page.h", r"CLOCK_PAGE_VERSION (\d+)"),
    "Probe ring version": (f"core/{INCLUDE}/probe_ring.h", r"PROBE_RING_VERSION (\d+)"),
    "virtual clock version": (f"core/{INCLUDE}/virtual_clock.h", r"VIRTUAL_CLOCK_VERSION (\d+)"),
    "telemetry of the verbs interposer version": (
        f"verbs_interposer/{INCLUDE}/verbs_telemetry.h",
        r"VERBS_TELEMETRY_VERSION (\d+)",
    ),
}


@pytest.mark.parametrize("what", VERSIONS)
def test_the_newest_documented_version_is_that_of_the_header(what: str) -> None:
    """Of the newest block that names it."""
    header, pattern = VERSIONS[what]
    [version] = re.findall(pattern, (ROOT / header).read_text())
    documented = re.findall(rf"{what} (\d+)", (ROOT / "CHANGELOG.md").read_text())
    assert documented[0] == version
