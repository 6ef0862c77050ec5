"""The nets that the bench of the NCCL plugin measures, all by the same program (tests/native/net_bench)."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.plugin.real_nccl import NoNcclError, nccl_library, places

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab
from fabricpulse.plugin.locate import library

ROOT = Path(__file__).parents[3]
PORT = 7100


@dataclass
class Net:
    """What the measuring program needs to reach one implementation of the v12 interface."""

    arguments: list[str]
    env: dict[str, str] = field(default_factory=dict)


def our_net(**env: str) -> Net:
    """The plugin as it is installed, with more environment for one case."""
    return Net([str(library()), "ncclNetPlugin_v12"], {"FABRICPULSE_NICS": "rail*", **env})


def nccl_sockets() -> dict[str, Net]:
    """NCCL's own socket transport in the settings that come near its best on a small machine.

    Without threads, as NCCL chooses on NICs of most vendors (the progress thread moves the bytes), and with one thread
    and one socket. More of them were two to four times slower on two processors.
    """
    try:
        found = nccl_library()
        where = places(found, {"ncclNetSocket", "cudaGetDevice"})
    except NoNcclError as error:
        print(f"no peer: {error}", file=sys.stderr)
        return {}
    arguments = [str(found), where["ncclNetSocket"], where["cudaGetDevice"]]
    env = {"NCCL_SOCKET_IFNAME": "rail0"}
    one_thread = {"NCCL_SOCKET_NTHREADS": "1", "NCCL_NSOCKS_PERTHREAD": "1"}
    return {"nccl_socket": Net(arguments, env), "nccl_socket_thread": Net(arguments, {**env, **one_thread})}


def nccl_ib() -> list[str]:
    """NCCL's own InfiniBand transport for the measuring program: library, table, stub. Empty if it cannot be had."""
    try:
        found = nccl_library()
        where = places(found, {"ncclNetIb", "cudaGetDevice"})
    except NoNcclError as error:
        print(f"no peer: {error}", file=sys.stderr)
        return []
    return [str(found), where["ncclNetIb"], where["cudaGetDevice"]]


def build_program(directory: Path) -> Path:
    """Compiles the measuring program."""
    program = directory / "net-bench"
    source = ROOT / "tests/native/net_bench/net_bench.cc"
    compiler = shutil.which("c++") or "c++"
    include = f"-I{ROOT}/nccl_plugin/src"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", include, str(source), "-o", str(program), "-ldl", "-pthread"],
        check=True,
    )
    return program


def measure(
    lab: Lab, program: Path, net: Net, mode: str, size: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """One run between two hosts: what the sender and the receiver have measured. Fails if a byte was wrong."""
    receiver, sender = lab.host(0), lab.host(1)
    results: dict[str, dict[str, Any]] = {}
    running = []
    for role, host in (("receive", receiver), ("send", sender)):
        output = (lab.directory / f"net-bench-{role}").open("w+")
        address = f"{receiver.front_end}:{PORT}"
        argv = [str(program), role, address, mode, str(size), str(seconds), *net.arguments]
        process = host.popen(argv, env=net.env, stdout=output, stderr=subprocess.STDOUT)
        running.append((role, process, output))
    for role, process, output in running:
        code = process.wait(seconds + 60)
        output.seek(0)
        said = output.read()
        output.close()
        if code != 0:
            raise UserError(f"{process.describe()} ended with {code}: {said.strip()[-500:]}")
        results[role] = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
    return results
