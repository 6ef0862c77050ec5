"""Which clock page the engine maps: only one that nobody but its owner may write to (docs/run-directory.md)."""

from pathlib import Path

import pytest
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for

from fabricpulse.core.shm.clock_page import ClockPageWriter
from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.snapshot import parse_snapshot


def mapped(path: Path) -> list[str]:
    """Access of each mapping that this process has of the file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if line.endswith(f" {path}")]


def started(clock_path: Path) -> native.ProbeEngine:
    """An engine without NICs that has read the clock page once at least."""
    settings = native.Settings()
    settings.host, settings.port, settings.bind_device = "h0", reserved_port(), False
    settings.clock_path = str(clock_path)
    engine = native.ProbeEngine(settings)
    engine.set_keys([bytes(16)])
    engine.configure([], [])
    engine.start()
    wait_for(lambda: parse_snapshot(engine.snapshot()).ticks >= 2, 20, "two ticks of the engine")
    return engine


@pytest.mark.parametrize(
    ("mode", "maps"), [(0o644, ["r--s"]), (0o664, []), (0o646, [])], ids=["owner's", "group's", "everybody's"]
)
def test_a_page_that_others_may_write_is_not_mapped(tmp_path: Path, mode: int, maps: list[str]) -> None:
    """Whoever may write to a mapped file may truncate it, and so end the daemon by SIGBUS."""
    page = tmp_path / "clock"
    writer = ClockPageWriter(page)
    page.chmod(mode)
    own = mapped(page)  # the writer's
    engine = started(page)
    try:
        assert [access for access in mapped(page) if access not in own] == maps
    finally:
        engine.stop()
    assert not writer.removed()


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Somebody else may have put it in the place of the page."""
    page = tmp_path / "elsewhere"
    ClockPageWriter(page)
    own = mapped(page)
    (tmp_path / "clock").symlink_to(page)
    engine = started(tmp_path / "clock")
    try:
        assert mapped(page) == own
    finally:
        engine.stop()
