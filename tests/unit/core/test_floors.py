"""The floors of the house: who may import whom, and which folders read no clock."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Package: the folder that it lives in. Floors are what components share; components never import one another.
FLOORS = {"core": "core", "diagnosis": "exporters", "hostinfo": "core", "plugin_ipc": "nccl_plugin"}
COMPONENTS = {
    "audit": "audit",
    "mesh": "exporters",
    "nic": "exporters",
    "qp": "exporters",
    "clocksync": "clocksync",
    "plugin": "nccl_plugin",
    "remediation": "remediation",
    "verbs": "verbs_interposer",
    "rules": "rules",
    "deploy": "deploy",
    "why": "why",
    "placement": "placement",
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


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
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


def modules(package: str) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Name below `fabricpulse`, as parts, and file of each module of a package; a folder's own is its __init__.py."""
    folder = package_folder(package)
    for path in folder.rglob("*.py"):
        parts = (package, *path.relative_to(folder).with_suffix("").parts)
        yield (parts[:-1] if parts[-1] == "__init__" else parts), path


def imported_modules(path: Path, known: set[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The modules among `known` that a file imports; `from folder import module` is an import of the module."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = tuple(name.split("."))
            if parts[0] == "fabricpulse":
                # The longest prefix that is a module: what follows is a name in it.
                yield from [parts[1:end] for end in range(len(parts), 1, -1) if parts[1:end] in known][:1]


def cycle_in(arrows: dict[str, set[str]]) -> list[str]:
    """Some cycle of the graph, first node repeated at the end; [] if there is none."""
    done: set[str] = set()

    def visit(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        for after in sorted(arrows.get(node, ())):
            if found := visit(after, [*way, node]):
                return found
        done.add(node)
        return []

    for node in sorted(arrows):
        if found := visit(node, []):
            return found
    return []


def test_no_import_cycles_of_folders() -> None:
    """In no folder do its parts (modules and subfolders) import one another in a circle, directly or not.

    Imports inside functions count: they hide a circle from Python, not from people.
    """
    files = [entry for package in PACKAGES for entry in modules(package)]
    known = {name for name, _ in files}
    arrows: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for name, path in files:
        for other in imported_modules(path, known):
            # The folder that holds both, and which of its parts they are in.
            depth = next((k for k, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), None)
            if depth is not None:
                arrows.setdefault(name[:depth], {}).setdefault(name[depth], set()).add(other[depth])

    cycles = {
        "/".join(("fabricpulse", *folder)): cycle
        for folder, graph in arrows.items()
        if (cycle := cycle_in(graph))
    }
    assert cycles == {}


@pytest.mark.parametrize("source", ["nccl_plugin/src", "verbs_interposer/src", "exporters/probe_engine"])
def test_no_include_cycles_of_folders(source: str) -> None:
    """C++: no two folders of a library include one another, directly or not."""
    root = ROOT / source
    arrows: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        here = path.parent.relative_to(root).as_posix()
        found = arrows.setdefault(here, set())
        for included in re.findall(r'#include "([^"]+)"', path.read_text()):
            if (root / included).exists() and (there := Path(included).parent.as_posix()) != here:
                found.add(there)
    assert arrows
    assert cycle_in(arrows) == []


@pytest.mark.parametrize(
    ("arrows", "cycle"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"a"}}, ["a", "a"]),
    ],
)
def test_cycles_are_found(arrows: dict[str, set[str]], cycle: list[str]) -> None:
    """The search finds a circle that does not begin at its first node, and none where there is none."""
    assert cycle_in(arrows) == cycle
