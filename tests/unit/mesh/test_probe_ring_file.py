"""The file of the probe ring: made under a name that nobody can know (docs/run-directory.md)."""

import os
from pathlib import Path

from fabricpulse.mesh import _probe_engine as native


def test_what_lies_under_a_guessed_name_is_not_written(tmp_path: Path) -> None:
    """A link at the name of a writer's process id: what it names stays as it is, and so does the link."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    ring = tmp_path / "probes"
    link = tmp_path / f"probes.new.{os.getpid()}"
    link.symlink_to(precious)
    settings = native.Settings()
    settings.host, settings.ring_path = "h0", str(ring)
    native.ProbeEngine(settings)
    assert precious.read_text() == "kept"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([link.name, "precious", "probes"])
    assert not ring.is_symlink()
    assert ring.stat().st_mode & 0o777 == 0o644
