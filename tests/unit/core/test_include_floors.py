"""The floors of the house in C and C++: which source tree may include, and be built out of, which."""

import re
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

ROOT = Path(__file__).parents[3]
# Tree: those that it may include beside itself. A file belongs to the innermost tree around it.
MAY_INCLUDE = {
    "cmake": set[str](),
    "core/include": set[str](),
    "core/native": {"core/include"},
    "core/native/job": {"core/include"},
    "exporters/probe_engine": {"core/include", "core/native"},
    "clocksync/native": {"core/include", "core/native"},
    "nccl_plugin": {"core/include", "core/native/job"},
    "verbs_interposer": {"core/include", "core/native/job"},
}
MAY_INCLUDE["tests"] = {*MAY_INCLUDE}
# What a tree is built with beside sources.
TOOLS = {"cmake"}
SOURCES = (".c", ".cc", ".h")
NOT_OURS = {"build", "dist"}


def tree_of(path: str) -> str | None:
    """The innermost tree around a file or folder; None where there is none."""
    around = [tree for tree in MAY_INCLUDE if f"{path}/".startswith(f"{tree}/")]
    return max(around, key=len, default=None)


def may_use(tree: str | None, other: str | None) -> bool:
    return tree is None or other in {None, tree} | MAY_INCLUDE[tree]


def included_files(path: str, text: str, files: dict[str, str]) -> list[tuple[str, list[str]]]:
    """Each name that a file includes, and the files of ours that it may mean: the one beside it, else all so called."""
    found = []
    for mark, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)[">]', text, re.MULTILINE):
        beside = normpath(join(dirname(path), name))
        means = [beside] if beside in files else [file for file in files if file.endswith(f"/{name}")]
        # <threads.h> is the system's; ours have a folder before them where they are not in quotes.
        if mark == '"' or ("/" in name and means):
            found.append((name, means))
    return found


def wrong_includes(files: dict[str, str]) -> list[str]:
    """What the sources among `files` (path: text) include of trees that they may not know, or that is nowhere."""
    wrong = []
    for path, text in files.items():
        if not path.endswith(SOURCES):
            continue
        tree = tree_of(path)
        for name, means in included_files(path, text, files):
            trees = {tree_of(file) for file in means}
            if not means:
                wrong.append(f"{path} includes {name}, which is nowhere")
            elif tree not in trees:
                wrong += [f"{path} includes {name} of {other}" for other in trees if not may_use(tree, other)]
    return wrong


def wrong_builds(files: dict[str, str]) -> list[str]:
    """What the CMake files among `files` take of trees that they may not know, by path or by the name of a target."""
    builds = {path: text for path, text in files.items() if path.endswith(("CMakeLists.txt", ".cmake"))}
    targets = {
        name: tree_of(path)
        for path, text in builds.items()
        for name in re.findall(r"(?:add_library|add_executable|nanobind_add_module)\((\w[\w-]*)", text)
    }
    wrong = []
    for path, text in builds.items():
        tree = tree_of(path)
        code = re.sub(r"#.*", "", text)
        for taken in re.findall(r"(?:\$\{CMAKE_CURRENT_\w+\}/)?((?:[\w.-]+/)*\.\./[\w./-]*)", code):
            other = tree_of(normpath(join(dirname(path), taken)))
            if other not in TOOLS and not may_use(tree, other):
                wrong.append(f"{path} takes {taken} of {other}")
        words = set(re.findall(r"\w[\w-]*", code))
        wrong += [
            f"{path} takes {name} of {other}"
            for name, other in targets.items()
            if name in words and not may_use(tree, other)
        ]
    return wrong


@cache
def our_files() -> dict[str, str]:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in NOT_OURS]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for folder in folders
        if not folder.name.startswith(".")
        for path in folder.rglob("*")
        if path.suffix in (*SOURCES, ".cmake") or path.name == "CMakeLists.txt"
    }


def test_every_source_is_in_a_tree() -> None:
    """A new folder of C or C++ must be given its place above; none stands there that is gone."""
    assert {tree_of(path) for path in our_files()} == {*MAY_INCLUDE}


def test_trees_include_only_what_is_below_them() -> None:
    """core/include is the ground; components include floors and themselves, tests may include all."""
    assert wrong_includes(our_files()) == []


def test_trees_are_built_only_out_of_what_is_below_them() -> None:
    """No component compiles another's source, or links what another defines."""
    assert wrong_builds(our_files()) == []


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        ("verbs_interposer/src/file.cc", '#include "core/telemetry.h"', ["core/telemetry.h of nccl_plugin"]),
        (
            "verbs_interposer/src/file.cc",
            '  #  include "core/telemetry.h" // why',
            ["core/telemetry.h of nccl_plugin"],
        ),
        ("verbs_interposer/src/file.cc", "#include <core/telemetry.h>", ["core/telemetry.h of nccl_plugin"]),
        (
            "verbs_interposer/src/file.cc",
            '#include "../../nccl_plugin/src/core/telemetry.h"',
            ["../../nccl_plugin/src/core/telemetry.h of nccl_plugin"],
        ),
        ("nccl_plugin/src/core/new.cc", '#include "meter.h"', ["meter.h of verbs_interposer"]),
        ("nccl_plugin/src/core/new.cc", '#include "python_module.h"', ["python_module.h of core/native"]),
        ("core/native/job/new.cc", '#include "meter.h"', ["meter.h of verbs_interposer"]),
        ("core/include/fabricpulse/new.h", '#include "job/records.h"', ["job/records.h of core/native/job"]),
        ("nccl_plugin/src/core/new.cc", '#include "core/gone.h"', ["core/gone.h, which is nowhere"]),
        ("nccl_plugin/src/core/new.cc", '#include "job/records.h"\n#include <threads.h>', []),
        ("nccl_plugin/src/core/new.cc", '#include "core/telemetry.h"', []),
        ("tests/native/new.cc", '#include "meter.h"', []),
    ],
)
def test_a_wrong_include_is_detected(path: str, text: str, wrong: list[str]) -> None:
    """Whichever way it is written; the right ones are let pass."""
    files = {
        "core/native/python_module.h": "",
        "core/native/job/records.h": "",
        "nccl_plugin/src/core/telemetry.h": "",
        "nccl_plugin/src/core/threads.h": "",
        "verbs_interposer/src/meter.h": "",
        path: text,
    }
    assert wrong_includes(files) == [f"{path} includes {what}" for what in wrong]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            "add_library(own STATIC a.cc\n  ../nccl_plugin/src/core/b.cc)",
            ["../nccl_plugin/src/core/b.cc of nccl_plugin"],
        ),
        (
            "include_directories(${CMAKE_CURRENT_SOURCE_DIR}/../nccl_plugin/src)",
            ["../nccl_plugin/src of nccl_plugin"],
        ),
        ("target_link_libraries(own PUBLIC plugin-core)", ["plugin-core of nccl_plugin"]),
        ("# Not plugin-core, nor ../nccl_plugin.\ntarget_link_libraries(own PUBLIC job)", []),
        ("include(${CMAKE_CURRENT_LIST_DIR}/../cmake/baseline.cmake)", []),
        ("add_subdirectory(${CMAKE_CURRENT_LIST_DIR}/../core/native/job job)", []),
    ],
)
def test_a_wrong_build_is_detected(text: str, wrong: list[str]) -> None:
    """By source, include folder, or target."""
    files = {
        "core/native/job/CMakeLists.txt": "add_library(job STATIC a.cc)",
        "nccl_plugin/CMakeLists.txt": "add_library(plugin-core STATIC b.cc)",
        "verbs_interposer/CMakeLists.txt": text,
    }
    assert wrong_builds(files) == [f"verbs_interposer/CMakeLists.txt takes {what}" for what in wrong]
