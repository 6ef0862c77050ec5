"""How plugin and interposer make the files that others map (core/native/job/run_files.h)."""

import stat
import subprocess
from pathlib import Path

from tests.fixtures.native.programs import native


def make(folder: Path, *commands: str) -> list[str]:
    """What the program answers to each command; its umask takes all from others."""
    done = subprocess.run(
        [native("job_run_file"), folder],
        input="\n".join(commands),
        text=True,
        capture_output=True,
        check=True,
        umask=0o077,
    )
    return done.stdout.splitlines()


def test_a_file_in_its_place_is_alone_there(tmp_path: Path) -> None:
    """Under its name, for all to read, in place of an older one; the hidden name is gone."""
    (tmp_path / "7-ab.telemetry").write_text("old")
    assert make(tmp_path, "make 7-ab", "place 7-ab.telemetry") == ["ok", "ok"]
    [file] = tmp_path.iterdir()
    assert file.name == "7-ab.telemetry"
    assert file.read_text() == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_file_that_gets_nowhere_goes_away(tmp_path: Path) -> None:
    """Dropped, replaced by another try, or at the end; also where it could not be put in its place."""
    said = make(tmp_path, "make 7-ab", "drop", "make 7-ab", "place gone/7-ab", "make 7-ab")
    assert said == ["ok", "ok", "ok", "No such file or directory", "ok"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_released_stays_open(tmp_path: Path) -> None:
    """The interposer's lock on its file is on that descriptor."""
    assert make(tmp_path, "make 7-ab", "place 7-ab.verbs", "release", "drop") == ["ok"] * 4 + ["open"]
    assert [file.name for file in tmp_path.iterdir()] == ["7-ab.verbs"]


def test_no_folder_no_file(tmp_path: Path) -> None:
    """errno says why, for the complaint."""
    assert make(tmp_path / "gone", "make 7-ab") == ["No such file or directory"]
