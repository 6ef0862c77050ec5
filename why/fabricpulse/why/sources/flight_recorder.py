"""PyTorch's Flight Recorder: dumps of all ranks, `<prefix><rank>`, as its watchdog writes them at a timeout.

Works with any transport. A dump is a pickle (older PyTorch, and the default) or JSON of
`{"version", "pg_config", "entries": [{"process_group", "collective_seq_id", "profiling_name", "state", ...}]}`
(torch/csrc/distributed/c10d/FlightRecorder.hpp, torch/distributed/flight_recorder). A pickle can run any code when
it is loaded: ours is read by an unpickler that knows plain containers only, and refuses everything else.
"""

import io
import json
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.why.facts import Rank

MOST_BYTES = 256 << 20
MOST_FILES = 16_384
_MOST_MISMATCHES = 5


@dataclass(frozen=True)
class Entry:
    """One collective of one rank. sequence : its number in the process group; state : as in the dump."""

    group: str
    sequence: int
    name: str
    state: str
    created_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0


@dataclass(frozen=True)
class Dump:
    """What one rank has left. entries : of collectives, no sends and receives."""

    rank: int
    entries: tuple[Entry, ...]


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and strings need no class; anything that does is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no dump does")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it has a persistent id, which no dump has")


def read_dumps(places: Iterable[Path]) -> list[Dump]:
    """Dumps of files and folders (all files of a folder whose name ends with a rank), by rank.

    Raises UserError for a file that cannot be read, is too large or is no dump, and for a rank that is there twice.
    """
    found: dict[int, Dump] = {}
    for path in _files(places):
        dump = _read(path)
        if dump.rank in found:
            raise UserError(f"{path}: there is a dump of rank {dump.rank} already; give the dumps of one job")
        found[dump.rank] = dump
    return [found[rank] for rank in sorted(found)]


def ranks(dumps: Iterable[Dump]) -> tuple[Rank, ...]:
    """How far each rank has come in each process group.

    A rank that has left collectives unfinished has rate 0: dumps are written when nothing has moved for the time-out.
    Pure.
    """
    facts = []
    for dump in dumps:
        groups: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in dump.entries:
            groups[entry.group].append(entry)
        for group, entries in sorted(groups.items()):
            enqueued = max(e.sequence for e in entries)
            ended = max(
                (e.sequence for e in entries if e.state == "completed"), default=enqueued - len(entries)
            )
            facts.append(
                Rank(
                    communicator=group,
                    rank=dump.rank,
                    host="",
                    operations=float(ended),
                    rate=0.0,
                    in_progress=float(enqueued - ended),
                )
            )
    return tuple(facts)


def mismatches(dumps: Iterable[Dump]) -> tuple[str, ...]:
    """Collectives of one number that ranks of a group call by different names: a deadlock of the program. Pure."""
    names: defaultdict[tuple[str, int], defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for dump in dumps:
        for e in dump.entries:
            names[e.group, e.sequence][e.name].append(dump.rank)
    return tuple(
        f"group {group}, collective {sequence}: "
        + ", ".join(
            f"{name} on ranks {', '.join(map(str, who[:4]))}" for name, who in sorted(by_name.items())
        )
        for (group, sequence), by_name in sorted(names.items())
        if len(by_name) > 1
    )[:_MOST_MISMATCHES]


def _files(places: Iterable[Path]) -> Iterator[Path]:
    count = 0
    for place in places:
        for path in sorted(place.iterdir()) if place.is_dir() else (place,):
            if place.is_dir() and (not path.is_file() or _rank(path) is None):
                continue
            count += 1
            if count > MOST_FILES:
                raise UserError(f"{place}: more than {MOST_FILES} dumps")
            yield path


def _rank(path: Path) -> int | None:
    match = re.search(r"(\d{1,7})(?:\.(?:json|pkl|pickle))?$", path.name)
    return int(match[1]) if match else None


def _read(path: Path) -> Dump:
    rank = _rank(path)
    if rank is None:
        raise UserError(f"{path}: the name of a dump ends with its rank")
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise UserError(f"{path} is larger than {MOST_BYTES >> 20} MB")
    try:
        content = (
            json.loads(data) if data[:1] in (b"{", b" ", b"\n") else _PlainUnpickler(io.BytesIO(data)).load()
        )
        entries = content["entries"]
        return Dump(rank, tuple(e for raw in entries if (e := _entry(raw)) is not None))
    # A pickle that somebody has broken raises nearly anything.
    except Exception as error:
        raise UserError(f"{path} is no dump of Flight Recorder: {error}") from error


def _entry(raw: dict[str, Any]) -> Entry | None:
    if raw.get("is_p2p") or "collective_seq_id" not in raw:
        return None
    group = raw.get("process_group") or raw.get("pg_id", "")
    return Entry(
        group="/".join(map(str, group)) if isinstance(group, list | tuple) else str(group),
        sequence=int(raw["collective_seq_id"]),
        name=str(raw.get("profiling_name", "")),
        state=str(raw.get("state", "")),
        created_ns=_ns(raw.get("time_created_ns")),
        started_ns=_ns(raw.get("time_discovered_started_ns")),
        ended_ns=_ns(raw.get("time_discovered_completed_ns")),
    )


def _ns(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 63 else 0
