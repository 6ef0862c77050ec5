"""Which folders of clocksync may import which: what is pure knows no daemon, and neither daemon knows the other."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "clocksync" / "fabricpulse" / "clocksync"
PREFIX = "fabricpulse.clocksync."
MAY_IMPORT: dict[str, set[str]] = {
    "clock": set(),
    "wire": set(),
    "edge": {"wire"},
    "solve": {"wire"},
    "outputs": {"clock"},
    "sidecar": {"clock", "edge", "outputs", "wire"},
    "coordinator": {"solve", "wire"},
}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_layers(folder: str) -> None:
    """A folder imports itself, the folders below it, native modules and the metric catalogue, nothing else."""
    wrong = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith(PREFIX):
                continue
            target = (node.module or "").removeprefix(PREFIX.rstrip(".")).removeprefix(".").split(".")[0]
            names = {alias.name for alias in node.names} if target == "" else {target}
            natives = {name for name in names if name.startswith("_")}
            wrong += [
                f"{path.name}:{node.lineno} imports {name}"
                for name in names - natives - {folder, "metrics"} - MAY_IMPORT[folder]
            ]
    assert wrong == []


def test_every_folder_has_its_layer() -> None:
    """A new folder must be given its place above."""
    assert {path.parent.name for path in ROOT.glob("*/*.py")} == set(MAY_IMPORT)


@pytest.mark.thorough
@pytest.mark.parametrize(("daemon", "other"), [("coordinator", "sidecar"), ("sidecar", "coordinator")])
def test_neither_daemon_loads_the_other(daemon: str, other: str) -> None:
    """A coordinator does not pay for the sidecar's modules, nor a host for the coordinator's (test_light_start)."""
    program = (
        f"import sys, fabricpulse.clocksync.{daemon}.{daemon}\n"
        f"print(*(m for m in sys.modules if m.startswith('fabricpulse.clocksync.{other}')))"
    )
    done = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
