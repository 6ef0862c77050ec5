"""One rank of a job of torch: does what each line of its standard input asks, a JSON object, and answers with one.

Both ranks of a job get the same lines. It imports nothing of fabricpulse, as a job does. `--backend gloo --device cpu`
runs it without a GPU: only the script itself is tried so.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

WORLD = 2
Answer = dict[str, Any]
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Rank:
    """The state that requests share. lines : those that are not read yet, of which a loop looks for its end."""

    def __init__(self, rank: int, device: str) -> None:
        self.rank = rank
        self.device = torch.device(device)
        self.lines: queue.Queue[str] = queue.Queue()
        self.began = self.inside_s = 0.0  # of collectives, seconds
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in range(WORLD)]

    def parts(self, elements: int) -> list[Any]:
        """What each rank contributes: whole numbers far below 2**24, whose sums are exact in float32."""
        return [
            torch.randint(-1000, 1000, (elements,), device=self.device, generator=g).float()
            for g in self.generators
        ]

    def wait(self) -> None:
        """Until the device has done all of it, without a processor."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(blocking=True)
            event.record()
            event.synchronize()

    def begin(self) -> None:
        """Before a collective, once the device has made its data."""
        self.wait()
        self.began = time.monotonic()

    def poisoned(self, elements: int) -> Any:
        """A buffer in which what is not written is wrong."""
        return torch.full((elements,), float("nan"), device=self.device)


def wrong(found: Any, expected: Any) -> int:
    """Elements that differ; those that are not numbers do."""
    return int((found != expected).sum())


def collective(rank: Rank, name: str, elements: int, group: Any = None) -> int:
    """One collective on fresh data; how many elements of its result are wrong. elements : an even number."""
    own, parts = rank.rank, rank.parts(elements)
    half = elements // 2
    if name == "all_reduce":
        result, expected = parts[own].clone(), parts[0] + parts[1]
        rank.begin()
        dist.all_reduce(result, group=group)
    elif name == "all_gather":
        result, expected = rank.poisoned(2 * elements), torch.cat(parts)
        rank.begin()
        dist.all_gather_into_tensor(result, parts[own], group=group)
    elif name == "reduce_scatter":
        result, expected = rank.poisoned(half), (parts[0] + parts[1])[own * half :][:half]
        rank.begin()
        dist.reduce_scatter_tensor(result, parts[own], group=group)
    elif name == "all_to_all":
        result = rank.poisoned(elements)
        expected = torch.cat([part[own * half :][:half] for part in parts])
        rank.begin()
        dist.all_to_all_single(result, parts[own], group=group)
    elif name == "broadcast":
        result, expected = (parts[1].clone() if own == 1 else rank.poisoned(elements)), parts[1]
        rank.begin()
        dist.broadcast(result, 1, group=group)
    elif name == "send_recv":
        result, expected = rank.poisoned(elements), parts[1 - own]
        rank.begin()
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, parts[own], 1 - own, group),
                dist.P2POp(dist.irecv, result, 1 - own, group),
            ]
        )
        for work in works:
            work.wait()
    else:
        raise ValueError(name)
    rank.wait()
    rank.inside_s += time.monotonic() - rank.began
    return wrong(result, expected)


def verify(rank: Rank, names: list[str], sizes: list[int], times: int) -> Answer:
    """Each collective with each size (bytes of a rank's contribution), some times."""
    found: Answer = {}
    for name in names:
        began = time.monotonic()
        bad, done, slowest = 0, 0, 0.0
        rank.inside_s = 0.0
        try:
            for size in sizes:
                for _ in range(times):
                    start = time.monotonic()
                    bad += collective(rank, name, max(size // 4, 2))
                    slowest = max(slowest, time.monotonic() - start)
                    done += 1
        except (RuntimeError, AttributeError) as error:
            found[name] = {"error": str(error)[:300], "done": done}
            continue
        found[name] = {
            "calls": done,
            "wrong_elements": bad,
            "seconds": time.monotonic() - began,
            "inside_s": rank.inside_s,
            "slowest_s": slowest,
        }
    return found


def loop(rank: Rank, size: int) -> Answer:
    """Verified all-reduces until rank 0 reads `stop`; both leave after the same round."""
    stop = torch.zeros(1, device=rank.device)
    elements = max(size // 4, 2)
    rounds = bad = 0
    longest_s, inside_s, began = 0.0, 0.0, time.monotonic()
    late: list[tuple[float, float]] = []
    while stop.item() == 0:
        parts = rank.parts(elements)
        expected = parts[0] + parts[1]
        rank.wait()
        start = time.monotonic()
        dist.all_reduce(parts[rank.rank])
        rank.wait()
        took = time.monotonic() - start
        rounds += 1
        inside_s += took
        longest_s = max(longest_s, took)
        if took > 0.2:
            late.append((round(time.time(), 3), round(took, 4)))
        bad += wrong(parts[rank.rank], expected)
        if rank.rank == 0 and not rank.lines.empty():
            rank.lines.get()
            stop.fill_(1)
        dist.all_reduce(stop)
    if rank.rank != 0:
        rank.lines.get()  # the same line, which the other read
    seconds = time.monotonic() - began
    return {
        "rounds": rounds,
        "wrong_elements": bad,
        "longest_s": longest_s,
        "late": late[-20:],
        "seconds": seconds,
        "inside_s": inside_s,
        "bytes": rounds * size,
    }


def graph(rank: Rank, size: int, replays: int) -> Answer:
    """A collective captured in a CUDA graph, replayed on fresh data."""
    elements = size // 4
    buffer = torch.zeros(elements, device="cuda")
    dist.all_reduce(buffer)  # connects: not to be captured
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(buffer)
        dist.broadcast(buffer, 1)
    bad = 0
    for _ in range(replays):
        parts = rank.parts(elements)
        buffer.copy_(parts[rank.rank])
        captured.replay()
        torch.cuda.synchronize()
        bad += wrong(buffer, parts[0] + parts[1])
    return {"replays": replays, "wrong_elements": bad}


def split(rank: Rank, size: int, rounds: int) -> Answer:
    """Two more communicators beside the first, of ncclCommSplit where torch takes it; both used at once."""
    how, groups = "new_group", []
    for _ in range(2):
        if hasattr(dist, "split_group") and rank.device.type == "cuda":
            how = "split_group"
            groups.append(dist.split_group(split_ranks=[list(range(WORLD))]))
        else:
            groups.append(dist.new_group(list(range(WORLD))))
    bad = 0
    for _ in range(rounds):
        parts = [rank.parts(size // 4) for _ in groups]
        sums = [pair[0] + pair[1] for pair in parts]
        works = [
            dist.all_reduce(pair[rank.rank], group=group, async_op=True)
            for pair, group in zip(parts, groups, strict=False)
        ]
        for work in works:
            work.wait()
        rank.wait()
        bad += sum(wrong(pair[rank.rank], total) for pair, total in zip(parts, sums, strict=False))
    for group in groups:
        dist.destroy_process_group(group)
    return {"how": how, "rounds": rounds, "wrong_elements": bad}


def thread_seconds() -> dict[str, float]:
    """Processor time of this process by the names of its threads."""
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "stat").read_text()
        except OSError:
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS
    return found


def compare(rank: Rank, nets: list[str], sizes: list[int], rounds: int, seconds: float) -> Answer:
    """All-reduces over one group for each net, turn by turn: bytes per second, and processor time per GB."""
    groups = {}
    for net in nets:
        options = None
        if rank.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options.config.net_name = net
        groups[net] = dist.new_group(list(range(WORLD)), pg_options=options)
        dist.all_reduce(torch.ones(1 << 20, device=rank.device), group=groups[net])
        rank.wait()
    rows = []
    for size in sizes:
        buffer = torch.ones(max(size // 4, 2), device=rank.device)
        calls = {}
        for net in nets:  # how often it fits in the time: of the slower one, and the same in both ranks
            dist.all_reduce(buffer, group=groups[net])
            rank.wait()
            start = time.monotonic()
            dist.all_reduce(buffer, group=groups[net])
            rank.wait()
            calls[net] = time.monotonic() - start
        worst = torch.tensor([max(calls.values())], device=rank.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        count = int(min(2000, max(3, seconds / worst.item())))
        for turn in range(rounds):
            for net in nets if turn % 2 == 0 else nets[::-1]:
                threads, cpu, start = thread_seconds(), time.process_time(), time.monotonic()
                times = []
                for _ in range(count):
                    before = time.monotonic()
                    dist.all_reduce(buffer, group=groups[net])
                    rank.wait()
                    times.append(time.monotonic() - before)
                took, used = time.monotonic() - start, time.process_time() - cpu
                after = thread_seconds()
                rows.append(
                    {
                        "bytes": size,
                        "net": net,
                        "turn": turn,
                        "calls": count,
                        "gbytes_per_s": count * size / took / 1e9,
                        "p50_us": sorted(times)[count // 2] * 1e6,
                        "cpu_s_per_gb": used / (count * size / 1e9),
                        "threads": {
                            name: round(value - threads.get(name, 0.0), 2)
                            for name, value in after.items()
                            if value - threads.get(name, 0.0) > 0.015
                        },
                    }
                )
    return {"rows": rows}


def steps(rank: Rank, size: int, count: int, compute_s: list[float]) -> Answer:
    """Steps of training: each rank computes for its time on the device, then both are in an all-reduce."""
    data = torch.ones(size // 4, device=rank.device)
    matrix = torch.rand(1024, 1024, device=rank.device)
    longest_s = 0.0
    for _ in range(count):
        until = time.monotonic() + compute_s[rank.rank]
        if rank.device.type == "cpu":
            time.sleep(compute_s[rank.rank])  # only the script is tried
        while time.monotonic() < until:
            matrix = (matrix @ matrix).clamp_(0, 1)
            rank.wait()
        began = time.monotonic()
        dist.all_reduce(data)
        rank.wait()
        longest_s = max(longest_s, time.monotonic() - began)
    return {"rounds": count, "longest_s": longest_s}


def skip(rank: Rank, size: int) -> Answer:
    """A hang: rank 1 leaves out an all-reduce that rank 0 has begun. It does not wait for the device."""
    if rank.rank == 0:
        dist.all_reduce(torch.ones(size // 4, device=rank.device), async_op=True)
    return {"entered": rank.rank == 0}


def enter(rank: Rank, size: int) -> Answer:
    """Both begin an all-reduce, and do not wait for it."""
    dist.all_reduce(torch.ones(size // 4, device=rank.device), async_op=True)
    return {"entered": True}


def mismatch(rank: Rank, size: int, how: str) -> Answer:
    """A deadlock of the program: the ranks call different collectives (kinds), one with different sizes (sizes), or a
    broadcast that each waits for (roots)."""
    elements = size // 4
    if how == "sizes":
        data = torch.ones(elements // (64 if rank.rank == 1 else 1), device=rank.device)
        dist.all_reduce(data, async_op=True)
    elif how == "kinds" and rank.rank == 0:
        dist.all_reduce(torch.ones(elements, device=rank.device), async_op=True)
    else:
        root = 0 if how == "kinds" else 1 - rank.rank
        dist.broadcast(torch.ones(elements, device=rank.device), root, async_op=True)
    return {"how": how}


def receive(rank: Rank, size: int) -> Answer:
    """A hang of a pipeline: rank 0 receives what rank 1 never sends."""
    if rank.rank == 0:
        # Batched: alone it would make a communicator of its own, for which both ranks are needed.
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(size // 4, device=rank.device), 1)])
    return {"entered": rank.rank == 0}


def healthy(rank: Rank, size: int, seconds: float, folder: str) -> Answer:
    """All-reduces for some time; Flight Recorder's dumps are made in their middle, as of a job that is well."""
    stop = torch.zeros(1, device=rank.device)
    dumps: Answer = {}
    thread = threading.Timer(seconds / 2, lambda: dumps.update(flight_recorder(folder, rank.rank)))
    thread.start()
    data = torch.ones(size // 4, device=rank.device)
    began, rounds = time.monotonic(), 0
    while stop.item() == 0:
        dist.all_reduce(data)
        rank.wait()
        rounds += 1
        if rank.rank == 0 and time.monotonic() - began > seconds:
            stop.fill_(1)
        dist.all_reduce(stop)
        time.sleep(0.01)  # computes
    thread.join()
    return {"rounds": rounds, **dumps}


def flight_recorder(folder: str, rank: int) -> Answer:
    """What PyTorch's Flight Recorder has, in files of both its forms."""
    at = Path(folder)
    found: Answer = {"written_s": time.time()}
    for name, function, options in (
        ("pickle", "_dump_nccl_trace", ()),
        ("json", "_dump_nccl_trace_json", (True, False)),
    ):
        try:
            dump = getattr(torch._C._distributed_c10d, function)(*options)
        except (RuntimeError, AttributeError, TypeError) as error:
            found[name] = str(error)[:300]
            continue
        (at / name).mkdir(parents=True, exist_ok=True)
        (at / name / f"rank_{rank}").write_bytes(dump if isinstance(dump, bytes) else dump.encode())
        found[name] = len(dump)
    return found


def answer(rank: Rank, request: Answer) -> Answer:
    """What one request yields."""
    op, options = request.pop("op"), request
    if op == "flight_recorder":
        return flight_recorder(rank=rank.rank, **options)
    operations: dict[str, Callable[..., Answer]] = {
        "verify": verify,
        "loop": loop,
        "graph": graph,
        "split": split,
        "compare": compare,
        "steps": steps,
        "skip": skip,
        "enter": enter,
        "mismatch": mismatch,
        "receive": receive,
        "healthy": healthy,
    }
    return operations[op](rank, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--store", required=True, help="file in which the ranks find one another")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--eager", action="store_true", help="bind the group to the device, as split_group needs"
    )
    parser.add_argument(
        "--limit", type=float, help="seconds after which torch takes a collective for one that hangs"
    )
    options = parser.parse_args()
    if options.device != "cpu":
        torch.cuda.set_device(0)
    more = {"device_id": torch.device(options.device)} if options.eager and options.backend == "nccl" else {}
    dist.init_process_group(
        options.backend,
        init_method=f"file://{options.store}",
        rank=options.rank,
        world_size=WORLD,
        **more,
    )
    rank = Rank(options.rank, options.device)

    def read() -> None:
        for line in sys.stdin:
            rank.lines.put(line)
        rank.lines.put("")

    threading.Thread(target=read, daemon=True).start()
    dist.all_reduce(torch.ones(1, device=rank.device))
    rank.wait()
    if options.limit is not None and options.backend == "nccl":
        # Connecting takes longer than what hangs is to wait.
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=options.limit))
    version = ".".join(map(str, torch.cuda.nccl.version())) if options.backend == "nccl" else ""
    print(json.dumps({"ready": version, "torch": str(torch.__version__)}), flush=True)
    while line := rank.lines.get():
        request = json.loads(line)
        if request["op"] == "quit":
            break
        try:
            said = answer(rank, request)
        except Exception as error:  # whatever it is, the other end must see it
            said = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"answer": said}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
