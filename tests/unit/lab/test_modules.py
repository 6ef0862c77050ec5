"""The modules of the lab form layers: none imports, even for its types only, one that imports it."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import fabricpulse.lab

[FOLDER] = fabricpulse.lab.__path__


def test_no_import_cycle() -> None:
    """Imports under TYPE_CHECKING count: what a reader must know to read a module is below it."""
    root = Path(FOLDER)
    modules = {
        ".".join(("fabricpulse.lab", *path.relative_to(root).with_suffix("").parts)): path
        for path in root.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if (
                node.module == "fabricpulse.lab"
            ):  # a module, or what __init__ re-exports, which counts as lab.lab
                found = {f"fabricpulse.lab.{alias.name}" for alias in node.names}
                graph[name] |= found if found <= modules.keys() else {"fabricpulse.lab.lab"}
            else:
                graph[name] |= {node.module} & modules.keys()
    assert len(graph) > 20

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"cycle: {' -> '.join(error.args[1])}") from None
