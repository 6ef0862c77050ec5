"""The floors of the house: who may import whom, and which folders read no clock."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPONENTS = ("core", "exporters", "clocksync", "nccl_plugin", "remediation", "lab")
MAY_IMPORT = {component: {"core", component} for component in COMPONENTS} | {"lab": set(COMPONENTS)}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("component", COMPONENTS)
def test_floors(component: str) -> None:
    """core imports no component, components import core and themselves only, the lab may import all."""
    wrong = []
    for path in (ROOT / component / "fabricpulse").rglob("*.py"):
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] == "fabricpulse" and len(parts) > 1 and parts[1] not in MAY_IMPORT[component]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")

    assert wrong == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_one_import_name(component: str) -> None:
    """fabricpulse is a namespace package: an __init__.py in one portion would hide the others."""
    assert not (ROOT / component / "fabricpulse" / "__init__.py").exists()
    assert (ROOT / component / "fabricpulse" / component / "py.typed").is_file()
