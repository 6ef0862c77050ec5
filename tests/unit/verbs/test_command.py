"""`fabricpulse verbs`: what loads the interposer, and what it sees."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.plugin.verbs_file import VerbsFile

from fabricpulse.core.environment import Format, render
from fabricpulse.core.errors import UserError
from fabricpulse.verbs.command import command
from fabricpulse.verbs.environment import Program, variable
from fabricpulse.verbs.locate import nccl_library, preload_library

PRELOAD, NCCL = Path("/x/libfabricpulse-verbs.so"), Path("/x/nccl/libibverbs.so")


@pytest.mark.parametrize(
    ("program", "present", "value"),
    [
        (Program.LINKED, {}, f"{PRELOAD}"),
        (Program.LINKED, {"LD_PRELOAD": "/a.so"}, f"{PRELOAD}:/a.so"),
        (Program.LINKED, {"LD_PRELOAD": f"/a.so:{PRELOAD}"}, f"/a.so:{PRELOAD}"),
        (Program.NCCL, {"NCCL_IBVERBS_LIB": "other"}, "/x/nccl/libibverbs.so"),
        (Program.NCCL_OLD, {"LD_LIBRARY_PATH": "/b"}, "/x/nccl:/b"),
    ],
)
def test_the_variable_for_each_kind_of_program(program: Program, present: dict[str, str], value: str) -> None:
    """In every format the existing value is kept after it, without duplicates."""
    wanted = variable(program, PRELOAD, NCCL)
    script = f'{render([wanted], Format.SHELL, present)}\nprintf %s "${{{wanted.name}}}"'
    # Set in the shell: an LD_PRELOAD of its environment would be loaded by it.
    held = "".join(f"{name}={shlex.quote(value)}\n" for name, value in present.items())
    shell = subprocess.run(
        ["/bin/sh", "-c", held + script], env={}, capture_output=True, text=True, check=True
    )
    assert shell.stdout == value
    assert render([wanted], Format.ENV, present) == f"{wanted.name}={value}"
    assert json.loads(render([wanted], Format.JSON, present))["variables"] == {wanted.name: value}


def test_each_reader_of_the_line_gets_the_path() -> None:
    """A shell takes quotes away; a TaskProlog of Slurm and readers of env files take each character as it stands."""
    wanted = variable(Program.NCCL, PRELOAD, Path("/a b/libibverbs.so"))

    assert [render([wanted], each, {}) for each in (Format.SHELL, Format.SLURM, Format.ENV)] == [
        "export NCCL_IBVERBS_LIB='/a b/libibverbs.so'",
        "export NCCL_IBVERBS_LIB=/a b/libibverbs.so",
        "NCCL_IBVERBS_LIB=/a b/libibverbs.so",
    ]
    with pytest.raises(UserError, match="--format json"):
        render([variable(Program.NCCL, PRELOAD, Path("/a\nb"))], Format.ENV, {})


def test_a_task_prolog_is_one_line() -> None:
    """`verbs env` has the formats for jobs that `plugin env` has."""
    result = CliRunner().invoke(command, ["env", "--for", "nccl", "--format", "slurm"])
    assert result.output == f"export NCCL_IBVERBS_LIB={nccl_library()}\n"


def test_env_names_libraries_that_are_installed() -> None:
    """Standard output is one assignment."""
    assert preload_library().is_file()
    assert nccl_library().name == "libibverbs.so"
    result = CliRunner().invoke(command, ["env", "--for", "nccl", "--format", "env"])
    assert result.output == f"NCCL_IBVERBS_LIB={nccl_library()}\n"


def test_status_shows_queue_pairs_and_unobserved_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON and table say the same; programs that have ended are not there; a broken file is a complaint."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    folder = tmp_path / "plugin"
    folder.mkdir()
    file = VerbsFile(folder)
    file.queue_pair(0, "10.9.0.2", posts=[3], bytes=[300], messages_sent=1, errors=[0] * 5 + [2])
    file.header["bypass"] = 1
    VerbsFile(folder, name="200").end()
    (folder / "300.verbs").write_bytes(b"")
    result = CliRunner().invoke(command, ["status", "--output", "json"])
    [process] = json.loads(result.stdout)
    [pair] = process["queue_pairs"]
    assert (pair["posts"], pair["sent_bytes"], pair["peer"], pair["device"]) == (3, 300, "10.9.0.2", "rail0")
    assert pair["errors"] == {"wr_flush": 2}
    assert "mlx5dv_init_obj" in process["not_seen"][0]
    assert "300.verbs" in result.stderr
    assert "10.9.0.2" in CliRunner().invoke(command, ["status"], env={"COLUMNS": "200"}).stdout


def test_status_without_programs_says_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence, not an empty table."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    result = CliRunner().invoke(command, ["status"])
    assert isinstance(result.exception, UserError)
