"""NCCL Inspector's files: how long collectives of each rank took, with any transport (NCCL 2.28 or newer).

Its profiler plugin writes a file a process (`NCCL_INSPECTOR_DUMP_DIR`), a JSON object a line: `header` (communicator,
rank), `metadata` (host, time of writing), `coll_perf` (function, number, size, duration); see NVIDIA/nccl,
plugins/profiler/inspector/README.md, format v4.0. A line tells of the last collective that had ended when its writer
came by, so that numbers have gaps, and ranks tell of different ones: only durations of one function and size are
compared. What has not ended it does not tell: a hang is not seen. Times are each host's own, and compared on it alone.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import open_regular
from fabricpulse.core.output import printable
from fabricpulse.why.facts import Collective, Facts, Rank

MOST_FILES = 16_384
# Files grow as long as a job runs: the end of each is read, of many files less of each.
MOST_BYTES_EACH = 16 << 20
MOST_BYTES = 512 << 20
_MOST_NUMBER = 1 << 62
_SUFFIXES = {".log", ".json", ".jsonl"}
# Records of one function and size that each rank must have for their durations to be compared.
_LEAST_RECORDS = 5
_MOST_NAMED = 3
# By which clocks of hosts may differ, and a writer be late.
_CLOCKS_S = 60.0
# A job is not known to be quick that has written nothing for so long, and for so many of its longest gaps.
_QUIET_S, _GAPS = 30.0, 3.0


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int
    hostname: str = ""


class _Performance(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: float


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Performance | None = None


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(frozen=True)
class Record:
    """One collective of one rank that has ended. at_s : when it was written, by the host's clock. size : bytes."""

    communicator: str
    rank: int
    ranks: int
    host: str
    at_s: float
    function: str
    number: int
    size: int
    took_s: float


@dataclass(frozen=True)
class Log:
    """records : by file, in the order of the lines. torn : lines that are none. foreign : files of folders in which no
    line is Inspector's."""

    records: tuple[tuple[Record, ...], ...]
    torn: int = 0
    foreign: tuple[str, ...] = ()


def read_logs(places: Iterable[Path]) -> Log:
    """The ends of files, and of all `.log`, `.json` and `.jsonl` files of folders.

    Lines that are cut off or say nothing of a collective are passed over, and so are other files of a folder: the logs
    of a job, or one of which half of the first line has been written. Raises UserError for a file that was named itself
    and cannot be read or is not Inspector's, and where there is none.
    """
    paths = list(_files(places))
    if not paths:
        raise UserError("--inspector: there is no .log, .json or .jsonl file")
    most = min(MOST_BYTES_EACH, MOST_BYTES // len(paths))
    found, torn, foreign = [], 0, list[str]()
    for path, named in paths:
        try:
            lines = _tail(path, most)
        except UserError as error:
            if named:
                raise
            foreign.append(str(error))
            continue
        decoded = [_decoded(line) for line in lines]
        whole = [d for d in decoded if d is not None]
        if lines and not whole:
            name = printable(str(path))
            reason = f"{name} is no file of NCCL's Inspector in JSON: no line has its header and metadata"
            if named:
                raise UserError(reason)
            foreign.append(reason)
            continue
        torn += len(decoded) - len(whole)
        found.append(tuple(r for line in whole if (r := _record(line)) is not None))
    if foreign and not found:
        raise UserError(foreign[0])
    return Log(tuple(found), torn, tuple(foreign))


def add(facts: Facts, log: Log, window_s: float) -> Facts:
    """What Inspector says where nobody else tells of ranks or collectives: over the last `window_s` of each file until
    the moment asked about, compared with what is in it before that. Pure.

    Of a job that has written nothing for longer than it does, or than the window, nothing is known; where some files
    end before the others, whether the job is as quick as before is not.
    """
    until_s = facts.at_s + _CLOCKS_S
    log = replace(log, records=tuple(tuple(r for r in own if r.at_s <= until_s) for own in log.records))
    newest = [max(r.at_s for r in own) for own in log.records if own]
    ends_s = max(newest, default=0.0)
    limits = list[str]()
    quiet_s, usual_s = facts.at_s - ends_s, _longest_gap(log, ends_s - window_s)
    if newest and (quiet_s > window_s + _CLOCKS_S or quiet_s > max(_QUIET_S, _GAPS * usual_s)):
        old = f"Inspector's last line is {quiet_s:.0f} s older than the moment asked about"
        limits.append(
            f"{old}, before it none was {usual_s:.0f} s after another: the job pauses, has ended, or hangs"
        )
        return replace(facts, limits=(*facts.limits, *limits, *_limits(log, ())))
    late = sum(end_s < ends_s - max(window_s, _CLOCKS_S) for end_s in newest)
    if late:
        limits.append(
            f"{late} of {len(newest)} of Inspector's files end {ends_s - min(newest):.0f} s before the others: their "
            "ranks have ended, or hang"
        )
    now, before = _split(log, window_s)
    ranks = _ranks(now)
    return replace(
        facts,
        ranks=facts.ranks or ranks,
        collectives=facts.collectives or (() if late else _collectives(now, before)),
        limits=(*facts.limits, *limits, *_limits(log, ranks)),
    )


def _longest_gap(log: Log, since_s: float) -> float:
    """Between two lines of any file, seconds."""
    moments = sorted({r.at_s for own in log.records for r in own if r.at_s >= since_s})
    return max((later - earlier for earlier, later in pairwise(moments)), default=0.0)


def _split(log: Log, window_s: float) -> tuple[list[Record], list[Record]]:
    now: list[Record] = []
    before: list[Record] = []
    for records in log.records:
        newest_s = max((r.at_s for r in records), default=0.0)
        for r in records:
            (now if r.at_s > newest_s - window_s else before).append(r)
    return now, before


def _ranks(records: list[Record]) -> tuple[Rank, ...]:
    by_rank: defaultdict[tuple[str, int], list[Record]] = defaultdict(list)
    for r in records:
        by_rank[r.communicator, r.rank].append(r)
    kind = {name: _common(name, by_rank) for name in {name for name, _ in by_rank}}
    found = []
    for (communicator, rank), own in sorted(by_rank.items()):
        alike = [r.took_s for r in own if (r.function, r.size) == kind[communicator]]
        functions = _functions(own)
        rates = [rate for records in functions.values() if (rate := _rate(records)) is not None]
        found.append(
            Rank(
                communicator=communicator,
                rank=rank,
                host=own[-1].host,
                ranks=own[-1].ranks,
                operations=float(sum(max(r.number for r in records) for records in functions.values())),
                rate=sum(rates) if rates else None,
                duration_s=median(alike) if alike else None,
            )
        )
    return tuple(found)


def _common(communicator: str, by_rank: dict[tuple[str, int], list[Record]]) -> tuple[str, int] | None:
    """The function and size that a communicator spends most time in, of those that all its ranks tell often enough."""
    groups = [records for (name, _), records in by_rank.items() if name == communicator]
    shared: set[tuple[str, int]] | None = None
    spent: defaultdict[tuple[str, int], float] = defaultdict(float)
    for records in groups:
        counts: defaultdict[tuple[str, int], int] = defaultdict(int)
        for r in records:
            counts[r.function, r.size] += 1
            spent[r.function, r.size] += r.took_s
        often = {kind for kind, count in counts.items() if count >= _LEAST_RECORDS}
        shared = often if shared is None else shared & often
    return max(shared or (), key=lambda kind: (spent[kind], kind), default=None)


def _functions(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for r in records:
        found[r.function].append(r)
    return dict(found)


def _rate(records: list[Record]) -> float | None:
    """Collectives a second of one function of one rank, by NCCL's numbers. None for less than two moments."""
    first, last = min(records, key=lambda r: r.at_s), max(records, key=lambda r: r.at_s)
    passed_s, count = last.at_s - first.at_s, last.number - first.number
    return count / passed_s if passed_s > 0 and count >= 0 else None


def _collectives(now: list[Record], before: list[Record]) -> tuple[Collective, ...]:
    """Only those of which function and size are the same in both: bandwidth of other sizes is another."""
    then = _by_kind(before)
    total_s = sum(r.took_s for r in now)
    largest: dict[str, Collective] = {}
    for (function, size), records in sorted(_by_kind(now).items()):
        old = then.get((function, size), [])
        spent_s = sum(r.took_s for r in records)
        each = Collective(
            function,
            bandwidth=size / median(r.took_s for r in records) if size else None,
            bandwidth_before=size / median(r.took_s for r in old)
            if size and len(old) >= _LEAST_RECORDS
            else None,
            busy_share=spent_s / total_s if total_s else None,
            size=float(size),
            size_before=float(size) if old else None,
        )
        known = largest.get(function)
        if known is None or (each.busy_share or 0.0) > (known.busy_share or 0.0):
            largest[function] = each
    return tuple(largest.values())


def _by_kind(records: Iterable[Record]) -> dict[tuple[str, int], list[Record]]:
    found: defaultdict[tuple[str, int], list[Record]] = defaultdict(list)
    for r in records:
        found[r.function, r.size].append(r)
    return dict(found)


def _limits(log: Log, ranks: tuple[Rank, ...]) -> tuple[str, ...]:
    seen: defaultdict[str, int] = defaultdict(int)
    size = {r.communicator: r.ranks or 0 for r in ranks}
    for r in ranks:
        seen[r.communicator] += 1
    lines = ["NCCL's Inspector tells of collectives that have ended: a hang is not seen in its files"]
    partly = [f"{seen[c]} of {size[c]} ranks of {c}" for c in sorted(seen) if seen[c] < size[c]]
    if partly:
        more = f", … ({len(partly)} communicators in all)" if len(partly) > _MOST_NAMED else ""
        lines.append(f"Inspector's files are of {', '.join(partly[:_MOST_NAMED])}{more}")
    silent = {r.communicator for r in ranks} - {r.communicator for r in ranks if r.duration_s is not None}
    if silent:
        lines.append(
            f"of {len(silent)} communicators no collective is recorded {_LEAST_RECORDS} times by each rank: "
            "late ranks of "
            "them are not found"
        )
    if log.foreign:
        more = f" … ({len(log.foreign)} in all)" if len(log.foreign) > _MOST_NAMED else ""
        lines.append(f"passed over: {'; '.join(log.foreign[:_MOST_NAMED])}{more}")
    if log.torn:
        lines.append(f"{log.torn} lines of Inspector's files are cut off or no records")
    return tuple(lines)


def _files(places: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file, and whether it was named itself."""
    count = 0
    for place in places:
        inside = place.is_dir()
        for path in sorted(place.iterdir()) if inside else (place,):
            if inside and (path.suffix not in _SUFFIXES or not path.is_file()):
                continue
            count += 1
            if count > MOST_FILES:
                raise UserError(f"{printable(str(place))}: more than {MOST_FILES} files")
            yield path, not inside


def _tail(path: Path, most: int) -> list[bytes]:
    """The last lines of a file, `most` bytes of it; the first one is whole."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            data = file.read(most)
    except OSError as error:
        raise UserError(f"{printable(str(path))}: {error.strerror or error}") from error
    lines = data.split(b"\n")
    return [line for line in (lines[1:] if size > most else lines) if line.strip()]


def _decoded(line: bytes) -> _Line | None:
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _record(line: _Line) -> Record | None:
    """None for a line of a send or receive, and for absurd numbers."""
    h, m, p = line.header, line.metadata, line.coll_perf
    if p is None:
        return None
    plausible = 0 <= h.rank < h.n_ranks <= 1 << 24 and 0 < m.dump_timestamp_us < 1 << 62
    counted = 0 <= p.coll_sn < _MOST_NUMBER and 0 <= p.coll_msg_size_bytes < _MOST_NUMBER
    if not plausible or not counted or not 0 < p.coll_exec_time_us < 1e12:
        return None
    return Record(
        *(h.id, h.rank, h.n_ranks, m.hostname, m.dump_timestamp_us / 1e6),
        *(p.coll, p.coll_sn, p.coll_msg_size_bytes, p.coll_exec_time_us / 1e6),
    )
