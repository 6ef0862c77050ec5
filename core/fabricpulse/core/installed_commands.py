"""Metadata of a subcommand without importing it: its help line, and the extra that installs it."""

import ast
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, metadata
from pathlib import Path


def source_of(entry: EntryPoint) -> Path | None:
    """The source file of an entry point's module, or None where it is not installed. Imports nothing."""
    top, *below = entry.module.split(".")
    name, places, origin = top, list(import_module(top).__path__), None
    for part in below:
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            return None
        places, origin = spec.submodule_search_locations or [], spec.origin
    return Path(origin) if origin is not None else None


def extra_of(entry: EntryPoint) -> str | None:
    """The extra of this distribution that brings an entry point: the one with the name of its component, if any."""
    component = entry.module.split(".")[1]
    return component if component in metadata("fabricpulse").get_all("Provides-Extra", []) else None


def how_to_install(entry: EntryPoint) -> str:
    """What to do where the module of an entry point is missing."""
    extra = extra_of(entry)
    return (
        f"pip install 'fabricpulse[{extra}]'"
        if extra
        else "the installation is damaged: install fabricpulse again"
    )


def summary_of(entry: EntryPoint) -> str:
    """The first paragraph of the command's docstring, in one line, as click shows it.

    Read from the source: `fabricpulse --help` must not pay for the imports of every component.
    """
    source = source_of(entry)
    if source is None:
        return f"Not installed here: {how_to_install(entry)}"
    for node in ast.parse(source.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == entry.attr:
            return " ".join((ast.get_docstring(node) or "").split("\n\n", 1)[0].split())
    return ""
