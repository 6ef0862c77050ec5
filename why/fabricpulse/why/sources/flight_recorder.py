"""PyTorch's Flight Recorder: dumps of all ranks, `<prefix><rank>`, as its watchdog writes them at a timeout.

Works with any transport. A dump is a pickle (older PyTorch, and the default) or JSON of
`{"version", "pg_config", "entries": [{"process_group", "collective_seq_id", "profiling_name", "state", ...}]}`
(torch/csrc/distributed/c10d/FlightRecorder.hpp, torch/distributed/flight_recorder). A pickle can run any code when it
is loaded: ours is read by an unpickler that knows plain containers only, and refuses everything else. A few of its
bytes can also ask for all memory there is: while dumps are read, the process may take so much more and no further.

Dumps are written at a time-out, but also when somebody asks: what was enqueued just before a dump was written is no
sign of a hang.

Sends and receives of a batch have entries that stay *scheduled*, and behind them one named `nccl:coalesced` that ends;
it is no collective, though it has the number of the last one (seen with torch 2.11).
"""

import io
import json
import math
import os
import pickle
import re
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import open_regular
from fabricpulse.core.output import printable

MOST_BYTES = 256 << 20
MOST_FILES = 16_384
# Of all dumps together.
MOST_BYTES_IN_ALL = 2 << 30
# What reading dumps may add to the process.
_MOST_MEMORY = 4 << 30
_MOST_NUMBER = 1 << 62
# As of a request that waits (analysis.STALLED_S): so long before the dump nothing was enqueued.
_STILL_S = 5.0
_MOST_NAMED = 3
_MOST_MISSING = 8
_SHOWN = 200
# Ends a batch of collectives, or of sends and receives.
COALESCED = "nccl:coalesced"
_TRANSFER = re.compile(r"nccl:(send|recv) [0-9]{1,9}(?:->|<-)([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective of one rank. sequence : its number in the process group; state : as in the dump. elements : that
    go in, where it is known."""

    group: str
    sequence: int
    name: str
    state: str
    created_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    elements: int | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One send or receive of one rank. peer : its number in the process group."""

    group: str
    peer: int
    is_send: bool
    is_ended: bool
    created_ns: int = 0


@dataclass(frozen=True)
class Dump:
    """What one rank has left. entries : of collectives. written_s : when its file was, since 1970; None: not known.
    members : ranks of its groups, as far as the dump says. transfers : sends and receives. is_whole : whether it has
    all since the start of the process, as far as is known."""

    rank: int
    entries: tuple[Entry, ...]
    written_s: float | None = None
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    transfers: tuple[Transfer, ...] = ()
    is_whole: bool = False

    def still_s(self, entries: Sequence[Entry]) -> float:
        """For how long none of these had ended when it was written; 0: not known."""
        # Where none has ended: since the first of them was enqueued.
        since_ns = max((e.ended_ns for e in entries), default=0) or min(
            (e.created_ns for e in entries if e.created_ns), default=0
        )
        if not since_ns or self.written_s is None:
            return 0.0
        return max(0.0, self.written_s - since_ns / 1e9)

    @property
    def is_still(self) -> bool:
        """Whether nothing had been enqueued for a while when it was written, as far as is known."""
        stamps = [*(e.created_ns for e in self.entries), *(t.created_ns for t in self.transfers)]
        newest_ns = max(stamps, default=0)
        return not newest_ns or self.written_s is None or self.written_s - newest_ns / 1e9 >= _STILL_S


@dataclass(frozen=True)
class Dumps:
    """Those of a job by rank, and what to say about them. missing : ranks of the job that have left none."""

    found: tuple[Dump, ...] = ()
    limits: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and strings need no class; anything that does is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no dump does")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it has a persistent id, which no dump has")


def read_dumps(places: Iterable[Path]) -> Dumps:
    """Dumps of files and folders (all files of a folder whose name ends with a rank), by rank.

    In a folder a file that is no dump, or is only half of one, costs its own rank and is named. Raises UserError for a
    file that was named itself and is none, where there is no dump at all, and for a rank that is there twice.
    """
    found: dict[int, Dump] = {}
    passed: list[str] = []
    asked, left = False, MOST_BYTES_IN_ALL
    with _bounded_memory():
        for path, named in _files(places):
            asked = True
            try:
                dump, size = _read(path, left)
            except UserError as error:
                if named:
                    raise
                passed.append(str(error))
                continue
            left -= size
            if dump.rank in found:
                raise UserError(
                    f"{path}: there is a dump of rank {dump.rank} already; give the dumps of one job"
                )
            found[dump.rank] = dump
    if passed and not found:
        raise UserError(passed[0])
    if not found and (asked or places):
        raise UserError(
            "--flight-recorder: there is no file whose name ends with a rank, as those of dumps do"
        )
    limits = []
    if passed:
        more = f" … ({len(passed)} in all)" if len(passed) > _MOST_NAMED else ""
        limits.append(f"passed over: {'; '.join(passed[:_MOST_NAMED])}{more}")
    moving = sum(not dump.is_still for dump in found.values())
    if moving:
        limits.append(
            f"{moving} of {len(found)} dumps were written while the rank enqueued collectives: they tell of no hang"
        )
    dumps = tuple(found[rank] for rank in sorted(found))
    missing = _missing(dumps)
    if missing:
        more = f", … ({len(missing)} in all)" if len(missing) > _MOST_MISSING else ""
        limits.append(f"no dump of ranks {', '.join(map(str, missing[:_MOST_MISSING]))}{more}")
    return Dumps(dumps, tuple(limits), missing)


def _missing(dumps: Sequence[Dump]) -> tuple[int, ...]:
    """Members of the groups of those that are there, or gaps between their numbers where dumps name no members."""
    there = {dump.rank for dump in dumps}
    known = {rank for dump in dumps for members in dump.members.values() for rank in members}
    if not known:
        known = set(range(max(there, default=-1) + 1))
        # Dumps of some ranks that somebody has chosen.
        known = known if len(known) < 2 * len(there) else there
    return tuple(sorted(known - there))


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Allocations beyond the bound fail with MemoryError, as which a dump is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + _MOST_MEMORY
    if soft != resource.RLIM_INFINITY:
        most = min(most, soft)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _files(places: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file, and whether it was named itself."""
    count = 0
    for place in places:
        inside = place.is_dir()
        for path in sorted(place.iterdir()) if inside else (place,):
            if inside and (not path.is_file() or _rank(path) is None):
                continue
            count += 1
            if count > MOST_FILES:
                raise UserError(f"{_shown(place)}: more than {MOST_FILES} dumps")
            yield path, not inside


def _shown(path: Path) -> str:
    """Who writes dumps has chosen their names."""
    return printable(str(path))


def _rank(path: Path) -> int | None:
    match = re.search(r"(\d{1,7})(?:\.(?:json|pkl|pickle))?$", path.name)
    return int(match[1]) if match else None


def _read(path: Path, most: int) -> tuple[Dump, int]:
    """The dump, and its bytes. most : that may be read."""
    rank = _rank(path)
    if rank is None:
        raise UserError(f"{_shown(path)}: the name of a dump ends with its rank")
    try:
        with os.fdopen(open_regular(path.resolve(), os.O_RDONLY), "rb") as stream:
            written_s = os.fstat(stream.fileno()).st_mtime
            data = stream.read(min(MOST_BYTES, most) + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise UserError(f"{_shown(path)}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most:
        raise UserError(f"{_shown(path)}: all dumps together are larger than {MOST_BYTES_IN_ALL >> 20} MB")
    if len(data) > MOST_BYTES:
        raise UserError(f"{_shown(path)} is larger than {MOST_BYTES >> 20} MB")
    try:
        content = (
            json.loads(data) if data[:1] in (b"{", b" ", b"\n") else _PlainUnpickler(io.BytesIO(data)).load()
        )
        entries, transfers = _entries(content["entries"])
        groups = {*(e.group for e in entries), *(t.group for t in transfers)}
        members = _members(content.get("pg_config"), groups, rank)
        is_whole = not content["entries"] or content["entries"][0].get("record_id") == 0
        return Dump(rank, entries, written_s, members, transfers, is_whole), len(data)
    # A pickle that somebody has broken raises nearly anything.
    except Exception as error:
        why = (
            "it asks for more memory than a dump needs"
            if isinstance(error, MemoryError)
            else str(error)[:_SHOWN]
        )
        raise UserError(f"{_shown(path)} is no dump of Flight Recorder: {printable(why)}") from error


def _members(config: Any, groups: Iterable[str], rank: int) -> dict[str, tuple[int, ...]]:
    """Ranks of these groups that the dump lists; a list without its own rank, or that is none, says nothing."""
    found = {}
    for group in groups if isinstance(config, dict) else ():
        about = config.get(group.partition("/")[0])
        listed = about.get("ranks") if isinstance(about, dict) else None
        try:
            listed = json.loads(listed) if isinstance(listed, str) else listed
        except (ValueError, RecursionError):
            continue
        if not isinstance(listed, list | tuple) or not 1 < len(listed) <= MOST_FILES:
            continue
        if rank in listed and all(isinstance(one, int) and 0 <= one < _MOST_NUMBER for one in listed):
            found[group] = tuple(sorted(set(listed)))
    return found


def _entries(raw: Sequence[dict[str, Any]]) -> tuple[tuple[Entry, ...], tuple[Transfer, ...]]:
    """Collectives, and sends and receives; the end of a batch of these is the end of each."""
    found: list[Entry] = []
    transfers: list[Transfer] = []
    # Batch -> the transfers in it.
    batches: dict[tuple[str, Any], list[int]] = {}
    for one in raw:
        batch = _group(one), one.get("p2p_seq_id")
        if one.get("is_p2p"):
            if (transfer := _transfer(one)) is not None:
                batches.setdefault(batch, []).append(len(transfers))
                transfers.append(transfer)
        elif one.get("profiling_name") == COALESCED and batch in batches:
            if one.get("state") == "completed":
                for index in batches[batch]:
                    transfers[index] = replace(transfers[index], is_ended=True)
        elif (entry := _entry(one)) is not None:
            found.append(entry)
    return tuple(found), tuple(transfers)


def _transfer(raw: dict[str, Any]) -> Transfer | None:
    match = _TRANSFER.fullmatch(str(raw.get("profiling_name", "")))
    if match is None:
        return None
    ended = raw.get("state") == "completed"
    return Transfer(_group(raw), int(match[2]), match[1] == "send", ended, _ns(raw.get("time_created_ns")))


def _group(raw: dict[str, Any]) -> str:
    group = raw.get("process_group") or raw.get("pg_id", "")
    return "/".join(map(str, group)) if isinstance(group, list | tuple) else str(group)


def _entry(raw: dict[str, Any]) -> Entry | None:
    if "collective_seq_id" not in raw:
        return None
    sequence = int(raw["collective_seq_id"])
    if not 0 <= sequence < _MOST_NUMBER:
        return None
    return Entry(
        group=_group(raw),
        sequence=sequence,
        name=str(raw.get("profiling_name", "")),
        state=str(raw.get("state", "")),
        created_ns=_ns(raw.get("time_created_ns")),
        started_ns=_ns(raw.get("time_discovered_started_ns")),
        ended_ns=_ns(raw.get("time_discovered_completed_ns")),
        elements=_elements(raw.get("input_sizes")),
    )


def _elements(sizes: Any) -> int | None:
    """Of all inputs together; None for what is no list of their shapes."""
    if not isinstance(sizes, list | tuple) or not all(isinstance(shape, list | tuple) for shape in sizes):
        return None
    if not all(isinstance(one, int) and 0 <= one < _MOST_NUMBER for shape in sizes for one in shape):
        return None
    return sum(math.prod(shape) for shape in sizes) if sizes else None


def _ns(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 63 else 0
