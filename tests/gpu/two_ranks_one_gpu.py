"""Two ranks on one GPU, an all-reduce through the plugin with torch's NCCL, and a lane taken out while it runs.

    python tests/gpu/two_ranks_one_gpu.py [--seconds 10] [--elements 4194304]

NCCL refuses two ranks of one host on one GPU; with different NCCL_HOSTID it takes them for two hosts and uses the net
plugin between them. Every result is compared with the sum that the same generators give. A third into the run the lane
that has carried most is taken out of service by `lane.disable` on the control socket, and put back after two thirds.

Prints one JSON object and ends with 0 when the data were right and the lane left and came back, with 1 when not, and
with 2 when this machine cannot run it (no torch, no GPU). A NIC besides the loopback is needed too. The script has not
been run on this project's machines, which have no GPU.
"""

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from fabricpulse.core.errors import UserError
from fabricpulse.plugin.environment import job_environment
from fabricpulse.plugin.jobs import Job, change_message, find_jobs
from fabricpulse.plugin.locate import library

WORLD = 2
START_S = 120.0  # torch and CUDA are slow to load


def cannot(why: str) -> NoReturn:
    """Ends with 2: nothing was tested."""
    print(f"two_ranks_one_gpu: {why}", file=sys.stderr)
    sys.exit(2)


def load_torch() -> Any:
    """torch with a GPU."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        cannot("torch is not installed; install a CUDA build of it (pip install torch)")
    if not torch.cuda.is_available():
        cannot("torch sees no GPU; run this on a machine with an NVIDIA GPU and its driver")
    return torch


def work(rank: int, port: int, elements: int) -> None:
    """One rank: all-reduces of random whole numbers until its standard input (of rank 0) says stop."""
    torch = load_torch()
    torch.cuda.set_device(0)
    torch.distributed.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD
    )
    generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(WORLD)]
    rounds = wrong = 0
    longest_s = 0.0
    stop = torch.zeros(1, device="cuda")
    while True:
        parts = [
            torch.randint(-1000, 1000, (elements,), device="cuda", generator=g).float() for g in generators
        ]
        expected = sum(parts)  # exact: whole numbers far below 2**24
        torch.cuda.synchronize()
        began = time.monotonic()
        torch.distributed.all_reduce(parts[rank])
        torch.cuda.synchronize()
        longest_s = max(longest_s, time.monotonic() - began) if rounds else 0.0  # not the first: it connects
        rounds += 1
        wrong += int((parts[rank] != expected).sum())
        if rounds == 1:
            print(json.dumps({"ready": ".".join(map(str, torch.cuda.nccl.version()))}), flush=True)
        if rank == 0 and select.select([sys.stdin], [], [], 0)[0]:
            stop.fill_(1)
        torch.distributed.all_reduce(stop)  # both ranks leave after the same round
        if stop.item() > 0:
            break
    print(json.dumps({"rounds": rounds, "wrong_elements": wrong, "longest_round_s": longest_s}), flush=True)
    torch.distributed.destroy_process_group()


def start(rank: int, port: int, elements: int, run_dir: str) -> subprocess.Popen[str]:
    """A rank with the variables that `fabricpulse plugin env` prints; its complaints go to <run_dir>/rank*.log."""
    recommended = {setting.name: setting.value for setting in job_environment(library(), None).settings}
    own = {
        "NCCL_HOSTID": f"gpu-test-{rank}",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{run_dir}/rank{rank}.nccl.log",
        "FABRICPULSE_RUN_DIR": run_dir,
        "FABRICPULSE_RANK": str(rank),
    }
    command = [
        sys.executable,
        __file__,
        "--rank",
        str(rank),
        "--port",
        str(port),
        "--elements",
        str(elements),
    ]
    with Path(run_dir, f"rank{rank}.log").open("w") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, **recommended, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def say(process: subprocess.Popen[str], key: str, run_dir: str) -> dict[str, Any]:
    """The next JSON line of a rank that has `key`; a rank that says nothing for START_S is killed."""
    assert process.stdout is not None
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if line.startswith("{") and key in (answer := json.loads(line)):
                return dict(answer)
    finally:
        watchdog.cancel()
    logs = {path.name: path.read_text()[-2000:] for path in Path(run_dir).glob("rank*.log")}
    raise UserError(f"a rank has ended, or said nothing for {START_S:.0f} s; their logs end with: {logs}")


def sending_lane(job: Job) -> tuple[str, int, dict[str, Any]]:
    """The connection and lane of a rank that have sent most. Raises UserError when nothing went through the plugin."""
    lanes = [
        (connection["connection"], int(lane["lane"]), lane)
        for connection in job.status()["connections"]
        if connection["direction"] == "send"
        for lane in connection["lanes"]
    ]
    if not lanes or max(lane["sent_bytes"] for _, _, lane in lanes) == 0:
        raise UserError(f"nothing has been sent through the plugin in process {job.pid}")
    return max(lanes, key=lambda entry: int(entry[2]["sent_bytes"]))


def state(job: Job, connection: str, lane: int) -> tuple[str, int]:
    """State of a lane and the bytes it has sent."""
    (found,) = (
        c for c in job.status()["connections"] if c["connection"] == connection and c["direction"] == "send"
    )
    return str(found["lanes"][lane]["state"]), int(found["lanes"][lane]["sent_bytes"])


def change(job: Job, op: str, generation: int, connection: str, lane: int) -> dict[str, Any]:
    """One command; its answer must be yes."""
    answer = job.call(change_message(op, {"connection": connection, "lane": lane}, None, generation))
    if not answer.get("ok"):
        raise UserError(f"{op} was refused: {answer}")
    return answer


def measure(seconds: float, elements: int, run_dir: str) -> dict[str, Any]:
    """Runs both ranks with a lane fault in the middle."""
    # Ours from now until rank 0 listens, seconds later: nobody is given a port that is bound, and SO_REUSEADDR lets a
    # server that sets it too, as torch's does, listen beside a socket that does not.
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = holder.getsockname()[1]
    ranks = [start(rank, port, elements, run_dir) for rank in range(WORLD)]
    try:
        versions = [say(rank, "ready", run_dir)["ready"] for rank in ranks]
        job = next(job for job in find_jobs(Path(run_dir, "plugin")) if job.pid == ranks[0].pid)
        time.sleep(seconds / 3)
        connection, lane, _ = sending_lane(job)
        change(job, "lane.disable", 1, connection, lane)
        time.sleep(seconds / 3)
        without = state(job, connection, lane)
        change(job, "lane.enable", 2, connection, lane)
        time.sleep(seconds / 3)
        again = state(job, connection, lane)
        abi = job.call({"op": "hello"})["abi"]
        assert ranks[0].stdin is not None
        ranks[0].stdin.write("stop\n")
        ranks[0].stdin.flush()
        results = [say(rank, "rounds", run_dir) for rank in ranks]
        codes = [rank.wait(START_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        holder.close()
    right = all(result["wrong_elements"] == 0 for result in results) and codes == [0] * WORLD
    came_back = again[0] in ("up", "slow_start") and again[1] > without[1]
    return {
        "ok": right and without[0] == "disabled" and came_back,
        "nccl": versions[0],
        "net_abi": abi,
        "elements": elements,
        "ranks": results,
        "exit_codes": codes,
        "lane": {"connection": connection, "lane": lane, "while_disabled": without[0], "after": again[0]},
        "lane_bytes_after_enable": again[1] - without[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--elements", type=int, default=4 << 20, help="float32 numbers in one all-reduce")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        work(options.rank, options.port, options.elements)
        return
    load_torch()
    with tempfile.TemporaryDirectory() as run_dir:
        try:
            result = measure(options.seconds, options.elements, run_dir)
        except UserError as error:
            result = {"ok": False, "error": str(error)}
    print(json.dumps(result))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
