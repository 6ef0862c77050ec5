"""Two ranks on one GPU: real NCCL, by torch, through the plugin, its profiler and its telemetry.

    python -m tests.gpu.two_ranks_one_gpu [--parts collectives,faults,…] [--out FOLDER] [--seconds 270]

NCCL refuses two ranks of one host on one GPU; with different NCCL_HOSTID it takes them for two hosts and uses the net
plugin between them. Every result is compared with what the same generators give. Each rank has a network namespace with
two NICs where the kernel permits (rails.py).

Prints a JSON object a part, and a last one; ends with 0 when all parts held, with 1 when not, and with 2 when this
machine cannot run it (no torch, no GPU). Raw files go to FOLDER.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.gpu import captures, stalls
from tests.gpu import rails as network
from tests.gpu.job import command, eventually
from tests.gpu.session import LOADED, NAMES, Session, right, scrape

from fabricpulse.core.errors import UserError

SIZES = [8, 1024, 65536, 1 << 20, 16 << 20, 256 << 20]


def cannot(why: str) -> NoReturn:
    """Ends with 2: nothing was tested."""
    print(f"two_ranks_one_gpu: {why}", file=sys.stderr)
    sys.exit(2)


def require_gpu() -> None:
    """Ends the program where there is no torch with a GPU."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        cannot("torch is not installed; install a CUDA build of it (pip install torch)")
    if not torch.cuda.is_available():
        cannot("torch sees no GPU; run this on a machine with an NVIDIA GPU and its driver")


def part_audit(session: Session) -> dict[str, Any]:
    """The audit of this host, and NVML's answer beside that of nvidia-smi."""
    from fabricpulse.audit.host.nvml import ask  # of this part alone

    code, text = command("audit", "local", "--output", "json")
    (session.raw / "audit.json").write_text(text)
    fields = (
        "pci.bus_id,ecc.errors.uncorrected.volatile.total,ecc.mode.current,driver_version,"
        "remapped_rows.pending,remapped_rows.failure,pcie.link.gen.current,pcie.link.gen.max,"
        "pcie.link.width.current,pcie.link.width.max,clocks_event_reasons.active,power.draw,power.limit"
    )
    smi = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    answer = ask()
    return {
        "ok": code in (0, 10),
        "code": code,
        "nvml": repr(answer),
        "nvidia_smi": (smi.stdout + smi.stderr).splitlines(),
    }


def part_collectives(session: Session) -> dict[str, Any]:
    """All collectives in all sizes, a captured graph, communicators split from the first; what NCCL chose."""
    with session.job(eager=True, env={"FABRICPULSE_DETAIL": "1"}) as job:
        versions = job.ready()
        sizes = SIZES[:4] if session.cpu else SIZES
        verified = job.ask("verify", 120, names=NAMES, sizes=sizes, times=2)
        graph = job.ask("graph", 40, size=4 << 20, replays=10)
        split = job.ask("split", 60, size=1 << 20, rounds=10)
        plugin: dict[str, Any] = {}
        if not session.cpu:
            plugin = {
                "hello": job.process(0).call({"op": "hello"}),
                "log": job.nccl_log(*LOADED),
                "status": command("plugin", "status", env={"FABRICPULSE_RUN_DIR": str(job.run_dir)})[
                    1
                ].splitlines()[:60],
                "metrics": scrape(session, job, "collectives"),
                "events": [
                    event
                    for rank in (0, 1)
                    for event in job.process(rank).call({"op": "events"})["events"]
                    if event["kind"] != "lane_up"
                ],
            }
        codes = job.quit()
    return {
        "ok": right(*verified, *graph, *split) and codes == [0, 0],
        "versions": versions,
        "verified": verified[0],
        "graph": graph,
        "split": split,
        "exit_codes": codes,
        **plugin,
    }


def part_faults(session: Session) -> dict[str, Any]:
    """Verified all-reduces while the busiest lane is taken out and put back, and a NIC goes down and comes."""
    found: dict[str, Any] = {}
    with session.job(env={"FABRICPULSE_DETAIL": "1"}) as job:
        job.ready()
        job.begin("loop", size=4 << 20)
        time.sleep(3)  # until all lanes have sent
        connection, lane = max(job.lanes(0), key=lambda entry: int(entry[1]["sent_bytes"]))
        number = int(lane["lane"])

        def now() -> dict[str, Any]:
            return next(
                own for name, own in job.lanes(0) if name == connection and int(own["lane"]) == number
            )

        found["metrics"] = scrape(session, job, "loop")
        job.change(0, "lane.disable", 1, connection, number)
        time.sleep(2)  # long enough for a lane that is off to send, if it did
        without = now()
        job.change(0, "lane.enable", 2, connection, number)
        time.sleep(3)  # time to connect, and to slow-start
        after = now()
        found["lane"] = {
            "connection": connection,
            "lane": number,
            "while_disabled": without["state"],
            "after": after["state"],
            "bytes_after_enable": int(after["sent_bytes"]) - int(without["sent_bytes"]),
        }
        held = without["state"] == "disabled" and after["state"] in ("up", "slow_start")
        if session.rails.spaces:
            device = session.rails.devices[0]
            session.rails.link(1, device, "down")
            time.sleep(2)  # longer than a lane takes to be given up
            found["nic_down"] = [f"{own['state']} {own['sent_bytes']}" for _, own in job.lanes(0)]
            session.rails.link(1, device, "up")
            time.sleep(3)  # time to connect, and to slow-start
            found["nic_up"] = [f"{own['state']} {own['sent_bytes']}" for _, own in job.lanes(0)]
        found["events"] = job.process(0).call({"op": "events"})
        job.tell(0, "stop")
        job.tell(1, "stop")
        loops = job.answers("answer", 60)
        codes = job.quit()
        found["log"] = job.nccl_log("fabricpulse", "WARN", most=60)
    return {"ok": held and right(*loops) and codes == [0, 0], "loops": loops, "exit_codes": codes, **found}


def part_compare(session: Session, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Throughput, latency and processor time beside NCCL's own socket transport, turn by turn in one process."""
    own = {"NCCL_NET": "", "NCCL_SOCKET_IFNAME": "=" + ",".join(session.rails.devices), **(env or {})}
    with session.job(profiler=False, env=own) as job:
        for rank in job.ranks:
            assert rank.poll() is None
        job.ready()
        rows, _ = job.ask(
            "compare",
            100,
            nets=["fabricpulse", "Socket"],
            sizes=[8, 65536, 1 << 20, 16 << 20, 128 << 20],
            rounds=5,
            seconds=0.4,
        )
        log = job.nccl_log("Using network", "via NET", "Channel")
        codes = job.quit()
    summary: dict[str, Any] = {}
    for row in rows.get("rows", []):
        summary.setdefault(str(row["bytes"]), {}).setdefault(row["net"], []).append(
            (round(row["gbytes_per_s"], 3), round(row["p50_us"]), round(row["cpu_s_per_gb"], 3))
        )
    (session.raw / f"compare{session._jobs}.json").write_text(json.dumps(rows))
    return {
        "ok": "error" not in rows and codes == [0, 0],
        "gbytes_p50us_cpu": summary,
        "error": rows.get("error"),
        "threads": rows.get("rows", [{}])[-1].get("threads"),
        "log": log[:12],
    }


def part_mps(session: Session, more: dict[str, str] | None = None) -> dict[str, Any]:
    """`compare` with the ranks' kernels side by side on the GPU, by a daemon of CUDA MPS of this part alone."""
    pipes = session.raw / ("mps" + "".join((more or {}).values()))
    pipes.mkdir()
    env = {**(more or {}), "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    daemon = subprocess.Popen(
        ["nvidia-cuda-mps-control", "-f"], env={**os.environ, **env}, stdout=subprocess.DEVNULL
    )
    try:
        eventually("MPS is there", (pipes / "control").exists, 10)
        return part_compare(session, env)
    finally:
        subprocess.run(
            ["nvidia-cuda-mps-control"],
            env={**os.environ, **env},
            input=b"quit\n",
            timeout=15,
            check=False,
        )
        daemon.terminate()
        daemon.wait(10)


def part_crc(session: Session) -> dict[str, Any]:
    """`mps` without a CRC of payloads, and with one."""
    parts = {crc: part_mps(session, {"FABRICPULSE_PAYLOAD_CRC": crc}) for crc in ("0", "1")}
    return {"ok": all(part["ok"] for part in parts.values()), **parts}


def part_observe(session: Session) -> dict[str, Any]:
    """NCCL's own socket transport with the profiler alone."""
    with session.job(plugin=False, env={"FABRICPULSE_DETAIL": "2"}) as job:
        job.ready()
        verified = job.ask("verify", 60, names=NAMES, sizes=SIZES[:5], times=2)
        metrics = scrape(session, job, "observe")
        log = job.nccl_log(*LOADED)
        codes = job.quit()
    seen = any(line.startswith("fabricpulse_collective_operations_total") for line in metrics)
    return {
        "ok": right(*verified) and codes == [0, 0] and seen,
        "verified": verified,
        "metrics": metrics,
        "log": log,
        "exit_codes": codes,
    }


def part_killed(session: Session) -> dict[str, Any]:
    """Rank 1 is killed amid all-reduces: how long until torch has NCCL's error; it ends much later, by itself."""
    with session.job() as job:
        job.ready()
        job.begin("loop", size=4 << 20)
        time.sleep(2)  # the loop is under way on both ranks
        job.ranks[1].kill()

        def noticed() -> bool:
            return "failure detected by watchdog" in (job.folder / "rank0.log").read_text(errors="replace")

        took = eventually("torch has an error of NCCL", noticed, 15)
        said = (job.folder / "rank0.log").read_text(errors="replace")[:1500]
        log = job.nccl_log("the peer process has ended")
    return {"ok": took < 2 and bool(log), "seconds": took, "log": log[:1], "said": said}


def part_hang(session: Session) -> dict[str, Any]:
    """Rank 1 leaves out an all-reduce: what Flight Recorder's dumps tell `fabricpulse why`, and the exporter."""
    folder = session.raw / "flight"
    folder.mkdir()
    more = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"}
    with session.job(env={**more, "FABRICPULSE_DETAIL": "1"}) as job:
        job.ready()
        job.ask("verify", 60, names=["all_reduce", "all_gather"], sizes=[1 << 20], times=3)
        job.ask("skip", 20, size=1 << 20)
        time.sleep(3)  # rank 0 waits in the collective that rank 1 skips
        dumps = job.ask("flight_recorder", 20, folder=str(folder))
        env = {"FABRICPULSE_PROMETHEUS": "http://127.0.0.1:1"}  # nobody answers there, and nobody has to
        why = command("why", "gpu-test", "--flight-recorder", str(folder / "pickle"), env=env)
        metrics = [line for line in scrape(session, job, "hang", 6) if "waiting" in line or "rank_" in line]
    return {"ok": right(*dumps), "dumps": dumps, "why": why, "metrics": metrics}


def part_nccl_audit(session: Session) -> dict[str, Any]:
    """`audit run --nccl` over two agents, one in each namespace: the plugin's rings, and NCCL itself by torch."""
    folder = session.raw / "nccl_audit"
    folder.mkdir()
    (folder / "token").write_text("0123456789abcdef")
    names = [f"gpu-test-{rank}" for rank in range(2)]
    # What `ip netns exec` shows as /etc/hosts there.
    known = "127.0.0.1 localhost\n" + "".join(
        f"10.97.2.{rank + 1} {name}\n" for rank, name in enumerate(names)
    )
    fleet = []
    for rank, name in enumerate(names):
        hosts = Path("/etc/netns", session.rails.spaces[rank], "hosts")
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text(known)
        nics = [
            {"device": device, "address": f"10.97.{number}.{rank + 1}", "network": device}
            for number, device in enumerate(session.rails.devices)
        ]
        fleet.append({"name": name, "nics": nics})
        (folder / f"{name}.yaml").write_text(
            f"host: {name}\ntoken_file: {folder}/token\nstate: {folder}/{name}\n"
        )
    (folder / "fleet.yaml").write_text(json.dumps({"hosts": fleet}))
    run = [sys.executable, "-c", "from fabricpulse.core.cli import main; main()", "audit"]
    agents = []
    try:
        for rank, name in enumerate(names):
            env = {
                **os.environ,
                "NCCL_HOSTID": name,
                "NCCL_MNNVL_ENABLE": "0",
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_FILE": str(folder / f"{name}.nccl.log"),
                "FABRICPULSE_RUN_DIR": str(folder / name),
            }
            with (folder / f"{name}.log").open("w") as log:
                agents.append(
                    subprocess.Popen(
                        [
                            *session.rails.command(rank),
                            *run,
                            "node",
                            "--config",
                            str(folder / f"{name}.yaml"),
                        ],
                        env=env,
                        stdout=log,
                        stderr=log,
                    )
                )
        for name in names:
            eventually(
                f"the agent of {name}",
                lambda own=name: "listening" in (folder / f"{own}.log").read_text(),
                20,
            )
        done = subprocess.run(
            [
                *session.rails.command(0),
                *run,
                "run",
                *("--membership", str(folder / "fleet.yaml"), "--token-file", str(folder / "token")),
                *(
                    "--transfers",
                    "--rate",
                    "20000",
                    "--nccl",
                    "--yes",
                    "--ring-seconds",
                    "2",
                    "--output",
                    "json",
                ),
                *("--save", str(folder / "run.json")),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        left = [
            path.name
            for agent in agents
            for path in Path(tempfile.gettempdir()).glob(f"fabricpulse-ring-{agent.pid}-*")
        ]
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait(20)
    found = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
    rings = found.get("rings", [])
    itself = [ring for ring in rings if ring.get("torch")]
    return {
        "ok": len(itself) == 1 and itself[0]["bps"] is not None and not left,
        "code": done.returncode,
        "said": done.stderr[-1500:],
        "rings": [{k: ring.get(k) for k in ("lanes", "bps", "expected", "error", "torch")} for ring in rings],
        "notes": [note for note in found.get("notes", []) if "NCCL" in note],
        "findings": [f["summary"] for f in found.get("findings", [])],
        "left": left,
    }


PARTS: dict[str, Callable[[Session], dict[str, Any]]] = {
    "audit": part_audit,
    "collectives": part_collectives,
    "faults": part_faults,
    "compare": part_compare,
    "observe": part_observe,
    "hang": part_hang,
    "killed": part_killed,
    "mps": part_mps,
    "crc": part_crc,
    "nccl_audit": part_nccl_audit,
    **captures.PARTS,
    **stalls.PARTS,
}


def run(session: Session, parts: list[str], seconds: float) -> bool:
    """Each part, until the time is up; whether all held."""
    began, held = time.monotonic(), True
    for name in parts:
        start = time.monotonic()
        if start - began > seconds:
            result: dict[str, Any] = {"ok": False, "error": "no time is left"}
        else:
            try:
                result = PARTS[name](session)
            except (
                UserError,
                OSError,
                ValueError,
                KeyError,
                AssertionError,
                subprocess.SubprocessError,
            ) as error:
                result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        held = held and bool(result["ok"])
        print(json.dumps({"part": name, "took_s": round(time.monotonic() - start, 1), **result}), flush=True)
    return held


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument("--out", type=Path, help="folder for raw files; default: none are kept")
    parser.add_argument("--seconds", type=float, default=270.0, help="no part begins after this")
    parser.add_argument("--cpu", metavar="PYTHON", help=argparse.SUPPRESS)  # a torch without a GPU: gloo
    options = parser.parse_args()
    if not options.cpu:
        require_gpu()
    with tempfile.TemporaryDirectory() as scratch:
        raw = options.out or Path(scratch)
        raw.mkdir(parents=True, exist_ok=True)
        rails = network.make()
        print(json.dumps({"part": "rails", "kind": rails.kind, "errors": rails.errors}), flush=True)
        try:
            held = run(Session(raw, rails, options.cpu), options.parts.split(","), options.seconds)
        finally:
            rails.close()
    print(json.dumps({"ok": held}))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
