"""What other programs reach over the same NIC: iperf3 as the limit of one TCP stream, UCX's TCP transport. Printed, not
judged: neither has a message's receive, order or check of content to take care of as NCCL's transports do."""

import json
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from tests.bench.plugin.rows import report

from fabricpulse.lab import Lab

UCX_PORT = 7200


def iperf3(lab: Lab) -> tuple[float, float]:
    """GB/s of one stream in a second, and processor seconds for a GB of both ends."""
    for _ in range(3):
        end = _iperf3_end(lab)
        # On a busy machine the client has ended with 0 and without what the server had to say.
        if "sum_received" not in end:
            continue
        rate = end["sum_received"]["bits_per_second"] / 8e9
        shares = end["cpu_utilization_percent"]
        return rate, (shares["host_total"] + shares["remote_total"]) / 100 / rate
    raise RuntimeError(f"iperf3 says nothing of what was received: {end}")


def _iperf3_end(lab: Lab) -> dict[str, Any]:
    server, client = lab.host(0), lab.host(1)
    address = server.nic(0).address
    listening = server.popen(["iperf3", "-s", "-1", "-B", address, "-J"], stdout=subprocess.DEVNULL)
    command = ["iperf3", "-c", address, "-t", "1", "-J"]
    for _ in range(100):
        done = client.run(command, check=False)
        if done.returncode == 0:
            break
        time.sleep(0.05)  # the server may not listen yet, and says nothing until its end
    else:
        listening.kill()
        raise RuntimeError(f"iperf3: {done.stdout[-300:]}{done.stderr[-300:]}")
    try:
        listening.wait(10)
    except subprocess.TimeoutExpired:
        listening.kill()  # the client has said all; a server has been seen to wait on
    end: dict[str, Any] = json.loads(done.stdout)["end"]
    return end


def ucx(lab: Lab, size: int) -> float:
    """GB/s of UCX's tagged messages over TCP."""
    server, client = lab.host(0), lab.host(1)
    env = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "rail0", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    count = max(200, min(100_000, (1 << 30) // size))
    command = ["ucx_perftest", "-t", "tag_bw", "-s", str(size), "-n", str(count), "-p", str(UCX_PORT)]
    listening = server.popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(100):
        # Columns: iterations, three latencies, bandwidth average and overall in MB/s (of 2^20 bytes), two rates.
        done = client.run([*command, server.front_end], env=env, check=False)
        rows = [line.split() for line in done.stdout.splitlines() if line.startswith("Final:")]
        if done.returncode == 0 and rows:
            listening.wait(20)
            return float(rows[-1][-3]) * (1 << 20) / 1e9
        time.sleep(0.05)  # the server may not listen yet
    listening.kill()
    raise RuntimeError(f"ucx_perftest: {done.stdout[-300:]}{done.stderr[-300:]}")


class Limits:
    """What has been measured of them, a run at a time, so that they take their turns with the nets."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.streams: list[tuple[float, float]] = []
        self.rates: dict[int, list[float]] = {}
        self.tools = set()
        for tool, package in (("iperf3", "iperf3"), ("ucx_perftest", "ucx-utils")):
            if shutil.which(tool):
                self.tools.add(tool)
            else:
                print(f"no {tool}: scripts/system_packages.sh bench installs {package}", file=sys.stderr)

    def iperf3(self) -> None:
        """One run of a second."""
        if "iperf3" in self.tools:
            self.streams.append(iperf3(self.lab))

    def ucx(self, size: int) -> None:
        """One run with messages of `size` bytes."""
        if "ucx_perftest" in self.tools:
            self.rates.setdefault(size, []).append(ucx(self.lab, size))

    def report(self) -> None:
        """Medians of the rounds."""
        if self.streams:
            rates, costs = zip(*self.streams, strict=True)
            report("one_stream", "iperf3_throughput", statistics.median(rates), "GB/s", samples=len(rates))
            report("one_stream", "iperf3_cpu_per_gb", statistics.median(costs), "s/GB", samples=len(costs))
        for size, found in self.rates.items():
            report(f"{size}", "ucx_tcp_throughput", statistics.median(found), "GB/s", samples=len(found))
