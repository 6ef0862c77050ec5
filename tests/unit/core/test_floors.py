"""The floors of the house: who may import whom, and which folders read no clock."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Package: the folder that it lives in. Floors are what components share; components never import one another.
FLOORS = {"core": "core", "hostinfo": "core", "plugin_ipc": "nccl_plugin"}
COMPONENTS = {
    "mesh": "exporters",
    "nic": "exporters",
    "qp": "exporters",
    "clocksync": "clocksync",
    "plugin": "nccl_plugin",
    "remediation": "remediation",
    "rules": "rules",
    "deploy": "deploy",
}
TOPS = {"lab": "lab"}
PACKAGES = FLOORS | COMPONENTS | TOPS
MAY_IMPORT = (
    {floor: {"core", floor} for floor in FLOORS}
    | {component: {*FLOORS, component} for component in COMPONENTS}
    | {top: set(PACKAGES) for top in TOPS}
)


def package_folder(package: str) -> Path:
    return ROOT / PACKAGES[package] / "fabricpulse" / package


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("package", PACKAGES)
def test_floors(package: str) -> None:
    """core imports no component, components import floors and themselves only, the lab may import all."""
    wrong = []
    for path in package_folder(package).rglob("*.py"):
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] == "fabricpulse" and len(parts) > 1 and parts[1] not in MAY_IMPORT[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")

    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_one_import_name(package: str) -> None:
    """fabricpulse is a namespace package: an __init__.py in one portion would hide the others."""
    assert not (package_folder(package).parent / "__init__.py").exists()
    assert (package_folder(package) / "py.typed").is_file()


def test_every_package_is_on_a_floor() -> None:
    """A new package under fabricpulse/ must be given its place above."""
    found = {path.parent.name for path in ROOT.glob("*/fabricpulse/*/py.typed")}
    assert found == set(PACKAGES)
