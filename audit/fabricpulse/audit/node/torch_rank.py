"""One rank of a verified all-reduce by PyTorch: NCCL itself, on the first GPU of the host.

Run by an interpreter that has torch, which need not have fabricpulse: it imports nothing of it. Prints what
`fabricpulse-ring` prints last.
"""

import argparse
import json
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any, NoReturn

# Of a rank: as much as NCCL needs to be at full speed, and little of a GPU.
LEAST_BYTES = 64 << 20
_PERIOD = 997


def end(error: str = "", found: dict[str, float] | None = None) -> NoReturn:
    """Says what has come of it, and ends at once: a torch whose peers are gone may take a minute to."""
    sys.stdout.write(json.dumps({"type": "summary", "error": error or None, **(found or {})}) + "\n")
    sys.stdout.flush()
    os._exit(1 if error else 0)


def load_torch() -> Any:
    """torch with a GPU; without one the program ends."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        end(f"torch is not installed for {sys.executable}")
    if not torch.cuda.is_available():
        end("torch sees no GPU")
    return torch


def join(torch: Any, rank: int, size: int, rendezvous: str, patience_s: float) -> None:
    """Connects the ranks. Rank 0 listens at the rendezvous alone, not on all NICs as torch does by itself."""
    host, _, port = rendezvous.rpartition(":")
    host = host.strip("[]")
    timeout = timedelta(seconds=patience_s)
    more = {}
    if rank == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, int(port)), family=family, backlog=size)
        more["master_listen_fd"] = listener.detach()
    store = torch.distributed.TCPStore(host, int(port), size, rank == 0, timeout, **more)
    torch.distributed.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=timeout)


def all_reduce(torch: Any, rank: int, size: int, seconds: float) -> dict[str, float]:
    """All-reduces for so long; each result is compared. Sums are whole numbers below 2**24, exact in float32."""
    elements = max(LEAST_BYTES, size << 20) // 4
    pattern = torch.arange(elements, device="cuda") % _PERIOD
    source = (pattern + rank).float()
    expected = (pattern * size + size * (size - 1) // 2).float()
    buffer, stop = torch.empty_like(source), torch.zeros(1, device="cuda")
    rounds, corrupt, inside_s = 0, 0, 0.0
    until = 0.0
    while stop.item() == 0:
        buffer.copy_(source)
        torch.cuda.synchronize()
        began = time.monotonic()
        torch.distributed.all_reduce(buffer)
        torch.cuda.synchronize()
        took = time.monotonic() - began
        corrupt += int((buffer != expected).sum()) * 4
        if until:
            rounds += 1
            inside_s += took
        else:  # the first connects
            until = time.monotonic() + seconds
        if rank == 0 and rounds and time.monotonic() > until:
            stop.fill_(1)
        torch.distributed.all_reduce(stop)  # all leave after the same round
    moved = rounds * elements * 4 * 2 * (size - 1) / size
    return {"bus_bytes_per_second": moved / inside_s, "rounds": rounds, "corrupt_bytes": corrupt}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--rendezvous", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--connect-seconds", type=float, required=True)
    options = parser.parse_args()
    torch = load_torch()
    try:
        torch.cuda.set_device(0)
        join(torch, options.rank, options.size, options.rendezvous, options.connect_seconds)
        found = all_reduce(torch, options.rank, options.size, options.seconds)
    except Exception as error:  # of torch, NCCL or CUDA, whatever they raise: it goes into the answer
        text = str(error).strip().splitlines()
        end(f"{type(error).__name__}: {text[-1] if text else ''}")
    end(found=found)


if __name__ == "__main__":
    main()
