"""The built wheel, installed in an empty environment, without the sources at hand."""

import ctypes
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points, metadata
from importlib.resources import files
from pathlib import Path
from shutil import which
from zipfile import ZipFile

import click
import pytest

from fabricpulse.core.cli import cli

COMMAND = Path(sys.executable).with_name("fabricpulse")
COMMANDS = sorted(entry_points(group="fabricpulse.commands"), key=lambda entry: entry.name)
# What scripts/wheel_test.sh has built.
DIST = Path(os.environ["FABRICPULSE_DIST"])
OF_THE_LAB = ("demo", "lab")
# All that the wheel should have.
SETTINGS = tomllib.loads((DIST.parent / "pyproject.toml").read_text())["tool"]["scikit-build"]
PACKAGES = sorted(
    name.removeprefix("fabricpulse/") for name in SETTINGS["wheel"]["packages"] if name != "fabricpulse/lab"
)


def fabricpulse(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )


def portion(package: str) -> Path:
    [folder] = import_module(f"fabricpulse.{package}").__path__
    return Path(folder)


@pytest.mark.parametrize("package", PACKAGES)
def test_it_is_the_wheel(package: str) -> None:
    """Each component comes from this environment, not from a checkout, with its marker for type checkers."""
    assert portion(package).is_relative_to(sys.prefix)
    assert (portion(package) / "py.typed").is_file()


def test_runbooks_point_to_what_is_there() -> None:
    """A person on call may have no more than this host."""
    folder = portion("core").parent / "data" / "docs" / "runbooks"
    links = {
        (page.parent / link).resolve()
        for page in folder.glob("*.md")
        for link in re.findall(r"\]\(([^):#]+)[^)]*\)", page.read_text())
    }
    assert len(links) > 10
    assert [str(link) for link in links if not link.exists()] == []


def test_no_native_sources() -> None:
    """What is compiled is not also shipped as source."""
    root = portion("core").parent
    assert [
        str(p) for p in root.rglob("*") if p.suffix in {".cc", ".cpp"} or p.name == "CMakeLists.txt"
    ] == []


def check_help(*path: str, **environment: str) -> None:
    result = fabricpulse(*path, "--help", **environment)
    assert result.returncode == 0, result.stderr
    assert f"Usage: fabricpulse {' '.join(path)} " in result.stdout
    if "\nCommands:\n" in result.stdout:
        for line in result.stdout.split("\nCommands:\n")[1].splitlines():
            if line.startswith("  ") and line[2] != " ":
                check_help(*path, line.split()[0], **environment)


def check_help_below(command: click.Command, *path: str, parent: click.Context) -> None:
    """Of a command and those below it, in this process: one for each of them would take seconds of imports."""
    context = click.Context(command, info_name=path[-1], parent=parent)
    assert f"Usage: fabricpulse {' '.join(path)} " in command.get_help(context)
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        check_help_below(below, *path, name, parent=context)


@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS if entry.name not in OF_THE_LAB])
def test_help(name: str) -> None:
    """Every command and every command below it can be loaded and explains itself."""
    result = fabricpulse(name, "--help")
    assert result.returncode == 0, result.stderr
    assert f"Usage: fabricpulse {name} " in result.stdout
    assert isinstance(cli, click.Group)
    root = click.Context(cli, info_name="fabricpulse")
    command = cli.get_command(root, name)
    assert command is not None
    check_help_below(command, name, parent=root)


@pytest.mark.parametrize("name", OF_THE_LAB)
def test_the_lab_is_an_extra(name: str, tmp_path: Path) -> None:
    """GPU hosts do not get it; the command says what to install, and with that it is there."""
    assert not list(Path(sys.prefix).rglob("fabricpulse/lab"))
    without = fabricpulse(name, "--help")
    assert (without.returncode, without.stdout) == (1, "")
    assert without.stderr == (
        f"fabricpulse: error: `fabricpulse {name}` is not installed here: pip install 'fabricpulse[lab]'\n"
    )

    [wheel] = DIST.glob("fabricpulse_lab-*-py3-none-any.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    check_help(name, PYTHONPATH=str(tmp_path))


def test_the_lab_fits_this_version() -> None:
    """The extra names the other distribution, which wants exactly this one: there is one version, in one place."""
    ours = metadata("fabricpulse")
    assert 'fabricpulse-lab; extra == "lab"' in ours.get_all("Requires-Dist", [])
    [wheel] = DIST.glob("fabricpulse_lab-*.whl")
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    assert f"Requires-Dist: fabricpulse=={ours['Version']}\n" in text
    assert f"Version: {ours['Version']}\n" in text


def test_it_may_be_installed_on_distributions_of_2018() -> None:
    """The tag is manylinux with a glibc of at most 2.28; auditwheel has read it in the binaries."""
    [wheel] = DIST.glob("fabricpulse-*.whl")
    match = re.search(r"-manylinux_2_(\d+)_\w+\.whl$", wheel.name)
    assert match, wheel.name
    assert int(match[1]) <= 28


def test_files_are_put_in_place(tmp_path: Path) -> None:
    """Units that start this very program, settings, runbooks: all of it is in the wheel."""
    for role in ("host", "monitor"):
        result = fabricpulse("files", "write", role, "--root", str(tmp_path), "--apply")
        assert result.returncode == 0, result.stderr
    units = sorted((tmp_path / "etc/systemd/system").glob("*.service"))
    assert len(units) == 8
    assert all(f"\nExecStart={COMMAND} " in unit.read_text() for unit in units)
    runbooks = Path(fabricpulse("files", "path", "runbooks").stdout.strip())
    assert (runbooks / "FabricNicFlapping.md").is_file()
    assert (Path(fabricpulse("files", "path", "mixins").stdout.strip()) / "mixin.libsonnet").is_file()
    for name in ("prometheus.yml", "alertmanager.yml", "grafana.yaml", "web.yaml"):
        assert fabricpulse("files", "show", name).stdout


def test_catalogue_and_configurations_load() -> None:
    """All metric catalogues and configuration classes that the entry points name are there."""
    from fabricpulse.core.metrics.catalogue import load_catalogue
    from fabricpulse.core.reference import configuration_page, metrics_page

    assert "fabricpulse_nic_connected" in load_catalogue()
    assert "fabricpulse_nic_connected" in metrics_page()
    assert "basic_auth_users" in configuration_page()


def test_rules_render(tmp_path: Path) -> None:
    """The mixin is in the wheel and renders to the very rules that are in the wheel."""
    result = fabricpulse("rules", "render", "--output-dir", str(tmp_path))

    assert result.returncode == 0, result.stderr
    shipped = Path(str(files("fabricpulse") / "data" / "rules"))
    rendered = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.*")}
    assert len(rendered) >= 9
    for path, text in rendered.items():
        assert (shipped / path).read_text() == text


def test_plugin_is_there() -> None:
    """The plugin can be loaded as NCCL does it, and shows the symbols of every version that it promises."""
    result = fabricpulse("plugin", "path")
    assert result.returncode == 0, result.stderr
    path = Path(result.stdout.strip())

    assert path.name == "libnccl-net-fabricpulse.so"
    assert path.is_relative_to(sys.prefix)
    library = ctypes.CDLL(str(path))
    for version in range(8, 13):
        assert ctypes.c_void_p.in_dll(library, f"ncclNetPlugin_v{version}")


READERS = {
    "c": (["cc", "-std=c11", "-D_GNU_SOURCE"], "#include <fabricpulse/clock_page.h>\n#include <stdio.h>\n"),
    "cc": (["c++", "-std=c++17"], "#include <fabricpulse/clock_page.h>\n#include <cstdio>\n"),
}


@pytest.mark.parametrize("suffix", READERS)
def test_a_program_that_reads_fleet_time_compiles(suffix: str, tmp_path: Path) -> None:
    """The headers are there, complete, where `fabricpulse clocksync include` says; the program agrees on the layout."""
    from fabricpulse.core.shm.clock_page import FILE_SIZE

    compiler, head = READERS[suffix]
    if which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]}")
    result = fabricpulse("clocksync", "include")
    assert result.returncode == 0, result.stderr
    folder = Path(result.stdout.strip())
    assert folder.is_relative_to(sys.prefix)
    source = tmp_path / f"reader.{suffix}"
    source.write_text(head + 'int main() { printf("%zu", sizeof(struct fp_clock_file)); return 0; }\n')
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [*compiler, *warnings, f"-I{folder}", str(source), "-o", str(tmp_path / "reader")]
    subprocess.run(command, check=True)

    out = subprocess.run([str(tmp_path / "reader")], capture_output=True, text=True, check=True)

    assert int(out.stdout) == FILE_SIZE


def test_probe_engine_is_there() -> None:
    """The native parts of core and exporters can be loaded."""
    from fabricpulse.core._layouts import layouts

    assert layouts()["clock_page"]["sizeof"] > 0
    assert list(portion("mesh").rglob("_*.so"))
