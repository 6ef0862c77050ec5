"""`fabricpulse plugin env` prints what each NCCL release needs, and finds what is wrong with an environment."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabricpulse.core.environment import Format, Variable
from fabricpulse.core.errors import UserError
from fabricpulse.plugin import environment
from fabricpulse.plugin.command import command


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that exports net v8 to v12 and profiler v4 to v7, as the plugin does."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("library")
    symbols = [f"ncclNetPlugin_v{v}" for v in range(8, 13)] + [f"ncclProfiler_v{v}" for v in range(4, 8)]
    source = folder / "plugin.c"
    source.write_text("\n".join(f"int {symbol};" for symbol in symbols))
    target = folder / "libnccl-net-fabricpulse.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", target], check=True)
    return target


@pytest.mark.parametrize(
    ("nccl", "net", "profiler"),
    [
        ("2.20.5", 8, None),
        ("2.23.4", 8, None),
        ("2.25.1", 9, None),
        ("2.26.2", 10, None),
        ("2.27.3", 10, 4),
        ("2.28", 11, 5),
        ("2.29.7", 11, 6),
        ("2.30.3", 12, 6),
        ("2.32.3", 12, 7),
    ],
)
def test_each_release_gets_the_newest_versions_that_both_sides_know(
    library: Path, nccl: str, net: int, profiler: int | None
) -> None:
    """What NCCL will choose, by release; without a common profiler version none is set."""
    plan = environment.job_environment(library, environment.parse_version(nccl))
    assert (plan.net, plan.profiler) == (net, profiler)
    names = {setting.name for setting in plan.settings}
    expected = {"NCCL_NET_PLUGIN", "NCCL_NET"} | ({"NCCL_PROFILER_PLUGIN"} if profiler else set())
    assert names - {"LD_LIBRARY_PATH"} == expected


@pytest.mark.parametrize("nccl", ["2.18.1", "2.12", "1.0"])
def test_a_release_that_is_too_old_is_refused_with_the_reason(library: Path, nccl: str) -> None:
    """Older NCCL would fall back to its own transport in silence."""
    with pytest.raises(UserError, match=r"2\.20 or newer|too old"):
        environment.job_environment(library, environment.parse_version(nccl))


def test_a_version_that_is_none_is_refused() -> None:
    """One sentence, no traceback."""
    with pytest.raises(UserError, match=r"of the form 2\.27\.3"):
        environment.parse_version("newest")


def test_what_is_printed_passes_the_check(library: Path) -> None:
    """The environment that `env` prints has no problem; an empty one names each variable that is missing."""
    plan = environment.job_environment(library, (2, 30))
    assert environment.check(plan, {setting.name: setting.value for setting in plan.settings}) == []
    problems = environment.check(plan, {})
    assert len(problems) == 2
    assert all("is not set" in problem for problem in problems)


def test_what_leads_nccl_elsewhere_is_found(library: Path, tmp_path: Path) -> None:
    """Another library, another transport, and a short name that the loader cannot find are each named."""
    plan = environment.job_environment(library, (2, 30))
    good = {setting.name: setting.value for setting in plan.settings}
    other = tmp_path / "libnccl-net-other.so"
    other.touch()
    for name, value in (
        ("NCCL_NET_PLUGIN", str(other)),
        ("NCCL_NET_PLUGIN", "fabricpulse"),
        ("NCCL_NET", "Socket"),
        ("NCCL_COLLNET_ENABLE", "1"),
    ):
        (problem,) = environment.check(plan, good | {name: value})
        assert problem.startswith(name)


def test_a_short_name_on_the_loaders_path_is_right(library: Path) -> None:
    """`NCCL_NET_PLUGIN=fabricpulse` works with the folder on LD_LIBRARY_PATH."""
    plan = environment.job_environment(library, (2, 30))
    good = {setting.name: setting.value for setting in plan.settings}
    good |= {
        "NCCL_NET_PLUGIN": "fabricpulse",
        "NCCL_NET": "FabricPulse",
        "LD_LIBRARY_PATH": str(library.parent),
    }
    assert environment.check(plan, good) == []


@pytest.mark.parametrize("before", ["", "/opt/lib"])
def test_a_release_that_takes_no_path_finds_it_by_name(library: Path, before: str) -> None:
    """NCCL before 2.21 makes libnccl-net-VALUE.so of whatever NCCL_NET_PLUGIN says."""
    plan = environment.job_environment(library, (2, 20))
    commands = plan.render(Format.SHELL, {})
    script = f"{commands}\necho $NCCL_NET_PLUGIN $LD_LIBRARY_PATH"
    done = subprocess.run(
        ["sh", "-c", script], env={"LD_LIBRARY_PATH": before}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["fabricpulse", f"{library.parent}:{before}".rstrip(":")]
    set_up = {
        "NCCL_NET": "fabricpulse",
        "NCCL_NET_PLUGIN": "fabricpulse",
        "LD_LIBRARY_PATH": str(library.parent),
    }
    assert environment.check(plan, set_up) == []
    (problem,) = environment.check(plan, set_up | {"NCCL_NET_PLUGIN": str(library)})
    assert "is a path" in problem
    for wrong in ({"LD_LIBRARY_PATH": before}, {"NCCL_NET_PLUGIN": library.name}):
        (problem,) = environment.check(plan, set_up | wrong)
        assert "does not lead to" in problem


def test_the_oldest_release_that_will_do_is_said(tmp_path: Path) -> None:
    """By what the library exports: v9 is what NCCL 2.24 loads first."""
    source, library = tmp_path / "plugin.c", tmp_path / "libnccl-net-fabricpulse.so"
    source.write_text("int ncclNetPlugin_v9;")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    with pytest.raises(UserError, match=r"use NCCL 2\.24 or newer"):
        environment.job_environment(library, (2, 20))


def test_profiler_only_keeps_the_transport(library: Path) -> None:
    """Telemetry without the transport sets the profiler alone, and says so when NCCL is too old for it."""
    plan = environment.job_environment(library, (2, 28), profiler_only=True)
    assert [setting.name for setting in plan.settings] == ["NCCL_PROFILER_PLUGIN"]
    with pytest.raises(UserError, match=r"2\.27 or newer"):
        environment.job_environment(library, (2, 24), profiler_only=True)


def test_a_file_that_is_no_library_is_one_sentence(tmp_path: Path) -> None:
    """A broken installation is said as such."""
    broken = tmp_path / "libnccl-net-fabricpulse.so"
    broken.write_text("no library")
    with pytest.raises(UserError, match="cannot be loaded"):
        environment.job_environment(broken, (2, 30))


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("evaluate", ['eval "$(cat commands)"', "eval $(cat commands)"])
def test_shell_commands_are_safe_for_eval(library: Path, tmp_path: Path, shell: str, evaluate: str) -> None:
    """With and without quotes around the substitution every variable has its value and nothing more."""
    plan = environment.job_environment(library, (2, 20))
    (tmp_path / "commands").write_text(plan.render(Format.SHELL, {}))
    names = [setting.name for setting in plan.settings]
    script = f"{evaluate}; " + "; ".join(f'printf "%s\\n" "${name}"' for name in names)
    done = subprocess.run(
        [shell, "-c", script],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.splitlines(), done.stderr) == ([setting.value for setting in plan.settings], "")


@pytest.mark.parametrize(("style", "prefix"), [(Format.SLURM, "export "), (Format.ENV, "")])
def test_formats_that_are_read_literally_have_values_only(library: Path, style: Format, prefix: str) -> None:
    """slurmd (_run_script_and_set_env) and docker --env-file take all behind the first = as the value: no comment, no
    quotes, no reference to another variable."""
    plan = environment.job_environment(library, (2, 20))
    lines = plan.render(style, {"LD_LIBRARY_PATH": "/opt/lib"}).splitlines()
    assert all(line.startswith(prefix) for line in lines)
    values = dict(line.removeprefix(prefix).split("=", 1) for line in lines)
    assert values == {
        "NCCL_NET_PLUGIN": "fabricpulse",
        "NCCL_NET": "fabricpulse",
        "LD_LIBRARY_PATH": f"{library.parent}:/opt/lib",
    }


def test_json_has_the_reasons(library: Path) -> None:
    """Variables as they shall be, why each, and the versions that NCCL will choose."""
    found = json.loads(environment.job_environment(library, (2, 30)).render(Format.JSON, {}))
    assert found["variables"]["NCCL_NET"] == "fabricpulse"
    assert set(found["reasons"]) == set(found["variables"])
    assert (found["net"], found["profiler"]) == (12, 6)


def test_a_value_that_a_format_cannot_carry_is_refused(library: Path) -> None:
    """A line break would end the value in the middle."""
    plan = environment.JobEnvironment(library, True, (Variable("NAME", "a\nb", "why"),), 12, None)
    with pytest.raises(UserError, match="--format json"):
        plan.render(Format.SLURM, {})


@pytest.fixture
def rdma(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with RDMA devices."""
    monkeypatch.setattr("fabricpulse.plugin.command.library", lambda: library)
    monkeypatch.setattr(environment, "rdma_devices", lambda: ["mlx5_0", "mlx5_1"])


@pytest.mark.usefixtures("rdma")
def test_a_job_is_not_moved_from_rdma_to_tcp_unasked() -> None:
    """On a host with RDMA devices NCCL keeps its transport; that is said, on standard error, with the way out."""
    done = CliRunner().invoke(command, ["env"])
    assert done.exit_code == 0
    assert "NCCL_NET" not in done.stdout
    assert "NCCL_PROFILER_PLUGIN" in done.stdout
    assert "mlx5_0, mlx5_1" in done.stderr
    assert "--transport tcp" in done.stderr


@pytest.mark.usefixtures("rdma")
@pytest.mark.parametrize("lanes", ["tcp", "verbs"])
def test_lanes_on_an_rdma_host_are_had_by_asking(lanes: str) -> None:
    """--transport tcp or verbs says nothing, moves the job, and leaves the plugin no choice."""
    done = CliRunner().invoke(command, ["env", "--transport", lanes])
    assert (done.exit_code, done.stderr) == (0, "")
    assert "export NCCL_NET=fabricpulse" in done.stdout
    assert f"export FABRICPULSE_LANES={lanes}" in done.stdout.replace("'", "")


@pytest.mark.usefixtures("rdma")
def test_a_job_that_would_move_to_tcp_fails_the_check() -> None:
    """--check on an RDMA host names NCCL_NET=fabricpulse."""
    done = CliRunner(env={"NCCL_NET": "fabricpulse"}).invoke(command, ["env", "--check"])
    assert done.exit_code == 1
    assert "moves the job to the plugin's lanes" in done.stdout


def test_rdma_devices_are_the_kernels(tmp_path: Path) -> None:
    """By /sys/class/infiniband; a kernel without it has none."""
    assert environment.rdma_devices(tmp_path / "absent") == []
    (tmp_path / "rxe0").mkdir()
    assert environment.rdma_devices(tmp_path) == ["rxe0"]
