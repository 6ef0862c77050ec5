"""`make bench NAME=nic`: the NIC exporter beside Debian's node_exporter on the same tree, and its flaps on veth pairs.

Prints one JSON object a line and exits with 1 if a gate is missed. Needs root for network namespaces. Options:
`--only parity,rss_mb` and so on, `--flaps N`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.nic.broken import bench_broken
from tests.bench.nic.cost import bench_cost, bench_soak
from tests.bench.nic.daemons import node_exporter, rows
from tests.bench.nic.flaps import INNER, ip
from tests.bench.nic.parity import bench_parity

from fabricpulse.core.log import configure_logging


def in_namespace(what: str, count: int, folder: Path) -> None:
    """Runs a part of this program in a network namespace of its own; its lines and its exit code are ours."""
    name = f"nicbench{os.getpid()}"
    run = folder / f"run-{what}"
    run.mkdir()
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        command = [
            "ip",
            "netns",
            "exec",
            name,
            sys.executable,
            "-m",
            "tests.bench.nic.__main__",
            "--inner",
            what,
            str(count),
        ]
        done = subprocess.run(command, env=os.environ | {"FABRICPULSE_RUN_DIR": str(run)}, check=False)
        if done.returncode != 0:
            rows.missed.append(f"{what}: see above")
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="comma separated: parity, broken, cost, soak, flaps, storm, latency"
    )
    parser.add_argument("--flaps", type=int, default=1000)
    parser.add_argument("--scrapes", type=int, default=300)
    parser.add_argument("--soak-scrapes", type=int, default=10_000)
    parser.add_argument("--inner", nargs=2, metavar=("PART", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    configure_logging("error")
    if options.inner:
        INNER[options.inner[0]](int(options.inner[1]))
        sys.exit(rows.exit_code())
    wanted = set(filter(None, options.only.split(",")))
    binary = node_exporter()
    if binary is None:
        print(
            "bench nic: prometheus-node-exporter is not installed and cannot be fetched; no comparison",
            file=sys.stderr,
        )

    def asked(part: str) -> bool:
        return not wanted or part in wanted

    with tempfile.TemporaryDirectory(prefix="bench-nic-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        if asked("parity") and binary is not None:
            bench_parity(folder / "parity", binary)
        if asked("broken"):
            bench_broken(folder / "broken", binary)
        if asked("cost"):
            bench_cost(folder / "cost", binary, options.scrapes)
        if asked("soak"):
            bench_soak(folder / "soak", options.soak_scrapes)
        if os.geteuid() != 0:
            print("bench nic: flaps need root for network namespaces", file=sys.stderr)
            sys.exit(1)
        for part, count in (("flaps", options.flaps), ("storm", 20_000), ("latency", 200)):
            if asked(part):
                in_namespace(part, count, folder)
    if binary is None:
        sys.exit(1)
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
