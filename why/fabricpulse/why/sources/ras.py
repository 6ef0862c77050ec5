"""NCCL's RAS service: asked twice at any process of a job, with any transport (NCCL 2.28 or newer for JSON).

Line protocol over TCP (NCCL_RAS_ADDR, by default port 28028 of localhost): `SET FORMAT json` and `STATUS`, then `OK` or
`ERROR: …` for each, one JSON document and the end of the connection (NVIDIA/nccl, src/ras/client_support.cc).

RAS counts what ranks have *launched*; that a collective has ended it does not know, so while all ranks hang in the same
one it sees nothing wrong. Counts are of different moments for different ranks. So only what stood still between two
answers says anything: ranks that have launched fewer collectives than others are the ones that are waited for, and
equal counts say nothing.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.why.facts import Facts, MissingRank, Rank

PORT = 28028
MOST_BYTES = 256 << 20
# NCCL 2.28 writes no comma here for ranks that it misses, so that the answers that matter most are no JSON.
_NO_COMMA = re.compile(rb'("nvml_dev": {0,4}-?[0-9]{1,10})(\s{1,64}"status")')
_MOST_MISMATCHES = 5


# What other processes say are numbers of a size that can be added up.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Status(msgspec.Struct):
    async_error: int = 0
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: _Number
    host: str = ""
    pid: int = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, _Number] = {}


class _Communicator(msgspec.Struct):
    hash: str
    size: _Number
    secondary_hash: str = ""
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []

    @property
    def name(self) -> str:
        """Two communicators may share the first hash."""
        return f"{self.hash}/{self.secondary_hash}" if self.secondary_hash else self.hash


class _Document(msgspec.Struct):
    communicators: list[_Communicator]
    nccl_version: str = ""


@dataclass(frozen=True)
class Snapshot:
    """One answer of RAS. at_s : when it came, monotonic seconds."""

    at_s: float
    document: _Document


@dataclass(frozen=True)
class RasFacts:
    """What two answers say. between_s : seconds between them."""

    between_s: float
    ranks: tuple[Rank, ...]
    missing: tuple[MissingRank, ...]
    mismatches: tuple[str, ...]
    errors: tuple[str, ...]


def parse(text: bytes, at_s: float, address: str) -> Snapshot:
    """The JSON document behind the `OK` lines. Pure. Raises UserError if there is none, or not in RAS' form."""
    start = text.find(b"{")
    if start < 0:
        said = text[:200].decode("utf-8", "replace").strip()
        raise UserError(
            f"{address}: the answer is not one of NCCL's RAS in JSON, which NCCL 2.28 and newer have: {said!r}"
        )
    body = _NO_COMMA.sub(rb"\1,\2", text[start:])
    try:
        return Snapshot(at_s, msgspec.json.decode(body, type=_Document))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{address}: the answer is not in the form of NCCL's RAS: {error}") from error


def facts_of(first: Snapshot, second: Snapshot) -> RasFacts:
    """What stood still between two answers, who is missing, who reports an error. Pure.

    The rate of a rank is that of collectives launched. In progress are those that a rank has launched and the last of
    its communicator has not: they cannot end. A communicator of which a rank is missing has no last one that is known.
    """
    between_s = second.at_s - first.at_s
    before = {(c.name, r.rank): r for c in first.document.communicators for r in c.ranks}
    ranks: list[Rank] = []
    mismatches: list[str] = []
    for communicator in second.document.communicators:
        launched = {r.rank: sum(r.collective_counts.values()) for r in communicator.ranks}
        is_still = all(
            (old := before.get((communicator.name, r.rank))) is not None
            and old.collective_counts == r.collective_counts
            for r in communicator.ranks
        )
        is_whole = len(communicator.ranks) == communicator.size
        least = min(launched.values(), default=0)
        for r in communicator.ranks:
            old = before.get((communicator.name, r.rank))
            moved = launched[r.rank] - sum(old.collective_counts.values()) if old else None
            held = launched[r.rank] - least if is_still and is_whole else 0
            ranks.append(
                Rank(
                    communicator=communicator.name,
                    rank=r.rank,
                    host=r.host,
                    ranks=communicator.size,
                    operations=float(launched[r.rank] - held),
                    rate=None if moved is None or between_s <= 0 else moved / between_s,
                    in_progress=float(held),
                )
            )
        if is_still and is_whole and len(set(launched.values())) == 1:
            mismatches += _mismatch(communicator)
    latest = second.document.communicators
    return RasFacts(
        between_s,
        tuple(ranks),
        tuple(
            MissingRank(c.name, r.rank, r.host, r.pid, r.status.considered_dead)
            for c in latest
            for r in c.missing_ranks
        ),
        tuple(mismatches[:_MOST_MISMATCHES]),
        tuple(_error(r) for c in latest for r in c.ranks if r.status.async_error or r.status.abort_flag),
    )


async def ask(address: str, between_s: float, timeout_s: float) -> RasFacts:
    """Two answers, `between_s` seconds apart. Raises UserError without an answer, or when it is not RAS."""
    first = await _snapshot(address, timeout_s)
    await asyncio.sleep(between_s)
    return facts_of(first, await _snapshot(address, timeout_s))


def add(facts: Facts, reported: RasFacts) -> Facts:
    """What RAS says beside what is known; ranks whose progress an exporter or a dump tells are not reported again.
    Pure.
    """
    says_nothing = not facts.ranks and not reported.missing and not any(r.in_progress for r in reported.ranks)
    silence = (
        "NCCL's RAS knows what ranks have launched, not what has ended: with all of them in the same collective it "
        "cannot tell a hang from a job that computes",
    )
    return replace(
        facts,
        window_s=facts.window_s if facts.ranks else reported.between_s,
        ranks=facts.ranks or reported.ranks,
        mismatches=(*facts.mismatches, *reported.mismatches),
        missing=reported.missing,
        rank_errors=reported.errors,
        limits=(*facts.limits, *(silence if says_nothing else ())),
    )


def host_and_port(address: str) -> tuple[str, int]:
    """`HOST`, `HOST:PORT`, `[V6]:PORT`. Raises OptionError."""
    host, port = address, ""
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        port = port.removeprefix(":")
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    if not host or (port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536)):
        raise OptionError(f"--ras {address}: give HOST or HOST:PORT; [ADDRESS]:PORT for IPv6")
    return host, int(port or PORT)


async def _snapshot(address: str, timeout_s: float) -> Snapshot:
    host, port = host_and_port(address)
    try:
        async with asyncio.timeout(timeout_s):
            text = await _exchange(host, port, timeout_s)
    except ValueError as error:  # a name that no resolver takes
        raise UserError(f"--ras {address}: {host!r} is no name of a host: {error}") from error
    except TimeoutError:
        raise UserError(f"--ras {address}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise UserError(
            f"--ras {address}: {error.strerror or error}; RAS listens where NCCL_RAS_ADDR of the job says, by default "
            f"on localhost:{PORT} of each host"
        ) from error
    return parse(text, asyncio.get_running_loop().time(), address)


async def _exchange(host: str, port: int, timeout_s: float) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # Ranks that do not answer RAS itself in half the time are reported as missing.
        writer.write(f"TIMEOUT {timeout_s / 2:g}\nSET FORMAT json\nSTATUS\n".encode())
        await writer.drain()
        text = bytearray()
        while part := await reader.read(1 << 16):
            text += part
            if len(text) > MOST_BYTES:
                raise OSError(f"it answers with more than {MOST_BYTES >> 20} MB")
        return bytes(text)
    finally:
        writer.close()


def _mismatch(communicator: _Communicator) -> Iterable[str]:
    """Ranks that have launched as many collectives, and not the same: a deadlock of the program."""
    kinds: defaultdict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for r in communicator.ranks:
        kinds[_launched(r.collective_counts)].append(r.rank)
    if len(kinds) > 1:
        counts_text = "; ".join(
            f"ranks {', '.join(map(str, who[:4]))}: {', '.join(f'{count} {name}' for name, count in kind)}"
            for kind, who in sorted(kinds.items())[:3]
        )
        yield f"communicator {communicator.hash} has launched different collectives ({counts_text})"


def _launched(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, count) for name, count in counts.items() if count))


def _error(r: _Rank) -> str:
    what = f"asynchronous error {r.status.async_error}" if r.status.async_error else "an abort"
    return f"rank {r.rank} on {r.host} reports {what} to NCCL's RAS"
