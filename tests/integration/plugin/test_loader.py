"""The real NCCL's own loader picks the plugin by the environment, and the newest version of each interface
(tests/native/hosts/loader.cc). No GPU is needed for that."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native
from tests.integration.plugin.real_nccl import NoNcclError, nccl_library, places

from fabricpulse.plugin.locate import library

ROOT = Path(__file__).parents[3]
CALLS = ("ncclNetInit", "ncclNetFinalize", "ncclProfilerPluginInit", "ncclProfilerPluginFinalize")


@pytest.fixture(scope="module")
def loader() -> list[str]:
    """The host program and where NCCL's functions are."""
    try:
        real = nccl_library()
        found = places(real, set(CALLS))
    except NoNcclError as error:
        pytest.skip(f"hardware: no network, or another NCCL: {error}")
    return [str(native("plugin_loader_host")), str(real), *(found[name] for name in CALLS)]


def load(loader: list[str], run_dir: Path, **env: str) -> list[str]:
    """What NCCL has said with these variables set."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "FABRICPULSE_"))
    }
    done = subprocess.run(
        loader,
        env={**clean, "NCCL_DEBUG": "INFO", "FABRICPULSE_RUN_DIR": str(run_dir), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "no NIC of this host is up" in done.stdout + done.stderr:
        pytest.skip("hardware: this machine has no NIC that is up")
    assert done.stdout.rstrip().endswith("end")
    return done.stdout.splitlines()


def has(said: list[str], text: str) -> bool:
    return any(text in line for line in said)


def recommended(*options: str) -> dict[str, str]:
    """The variables that `fabricpulse plugin env` prints."""
    program = Path(sys.executable).parent / "fabricpulse"
    done = subprocess.run([program, "plugin", "env", *options], capture_output=True, text=True, check=True)
    words = [shlex.split(line, comments=True) for line in done.stdout.splitlines()]
    return dict(word.split("=", 1) for line in words if line[:1] == ["export"] for word in line[1:])


def test_the_printed_environment_makes_nccl_choose_v12(loader: list[str], tmp_path: Path) -> None:
    """Net v12 and profiler v7 of the one library, initialised and finalised without an error; nothing is left."""
    env = recommended("--transport", "tcp")
    assert env["NCCL_NET"] == "fabricpulse"
    said = load(loader, tmp_path, **env)
    assert has(said, "NET/Plugin: Loaded net plugin fabricpulse (v12)")
    assert has(said, "Assigned NET plugin fabricpulse to comm")
    assert f"table {library()} ncclNetPlugin_v12" in said
    assert has(said, "PROFILER/Plugin: Loaded fabricpulse (v7)")
    assert [line for line in said if line.startswith("result ")] == [f"result {name} 0" for name in order()]
    assert list((tmp_path / "plugin").iterdir()) == []


def order() -> tuple[str, ...]:
    """The calls as the host makes them."""
    return "ncclNetInit", "ncclProfilerPluginInit", "ncclProfilerPluginFinalize", "ncclNetFinalize"


def test_by_its_short_name(loader: list[str], tmp_path: Path) -> None:
    """NCCL_NET_PLUGIN=fabricpulse finds libnccl-net-fabricpulse.so on the library path, as NCCL's own rule says."""
    said = load(loader, tmp_path, NCCL_NET_PLUGIN="fabricpulse", LD_LIBRARY_PATH=str(Path(library()).parent))
    assert has(said, "Loaded net plugin fabricpulse (v12)")
    assert has(said, "Assigned NET plugin fabricpulse to comm")


def test_profiler_beside_nccls_own_transport(loader: list[str], tmp_path: Path) -> None:
    """Telemetry-only mode: the profiler is ours, the transport is not."""
    said = load(loader, tmp_path, **recommended("--transport", "observe"), NCCL_IB_DISABLE="1")
    assert has(said, "PROFILER/Plugin: Loaded fabricpulse (v7)")
    assert not has(said, "Assigned NET plugin fabricpulse")
    assert "result ncclProfilerPluginInit 0" in said


def test_without_a_nic_nccl_goes_on_with_its_own(loader: list[str], tmp_path: Path) -> None:
    """A pattern that matches no NIC is no reason to fail the job: the plugin says why and steps back."""
    said = load(
        loader, tmp_path, NCCL_NET_PLUGIN=str(library()), FABRICPULSE_NICS="nosuch*", NCCL_IB_DISABLE="1"
    )
    assert has(said, "no NIC of this host matches FABRICPULSE_NICS=nosuch*")
    assert not has(said, "Assigned NET plugin fabricpulse")
    assert not any(line.startswith("table ") for line in said)
