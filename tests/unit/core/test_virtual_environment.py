"""scripts/venv.sh makes the virtual environment once, and anew where it was moved; it clears nothing else."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Stands in for the interpreter: what `python -m venv --clear FOLDER` leaves, without its seconds.
INTERPRETER = """#!/bin/sh
rm -rf "$4"; mkdir -p "$4/bin"; touch "$4/pyvenv.cfg"
printf '#!/bin/sh\\n' >"$4/bin/pip"; chmod +x "$4/bin/pip"
echo "$@" >>"$CALLS"
"""


def run(tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The script with a stand-in for the interpreter; its calls so far."""
    interpreter, calls = tmp_path / "python", tmp_path / "calls"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    calls.touch()
    environment = os.environ | {
        "PYTHON": str(interpreter),
        "VENV": str(tmp_path / "venv"),
        "CALLS": str(calls),
    }
    done = subprocess.run(
        [ROOT / "scripts" / "venv.sh"], env=environment, capture_output=True, text=True, check=False
    )
    return done, calls.read_text().splitlines()


def test_it_is_made_once(tmp_path: Path) -> None:
    """What works stays."""
    assert run(tmp_path)[0].returncode == 0
    (tmp_path / "venv" / "installed").touch()
    done, calls = run(tmp_path)
    assert (done.returncode, calls) == (0, [f"-m venv --clear {tmp_path / 'venv'}"])
    assert (tmp_path / "venv" / "installed").exists()


def test_one_that_was_moved_is_made_anew(tmp_path: Path) -> None:
    """Its scripts name an interpreter that is no longer there."""
    run(tmp_path)
    (tmp_path / "venv" / "bin" / "pip").write_text("#!/nowhere/python\n")
    done, calls = run(tmp_path)
    assert (done.returncode, len(calls)) == (0, 2)


def test_a_folder_that_is_none_is_left_alone(tmp_path: Path) -> None:
    """VENV= may be set to anything."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "thesis").touch()
    done, calls = run(tmp_path)
    assert (done.returncode, calls) == (1, [])
    assert "is no virtual environment; move it away, or set VENV=" in done.stderr
    assert (tmp_path / "venv" / "thesis").exists()
