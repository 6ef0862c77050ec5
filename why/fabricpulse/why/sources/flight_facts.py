"""What Flight Recorder's dumps tell of a hang: how far ranks have come, who waits for whom, who disagrees. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from fabricpulse.why.facts import Rank, Wait
from fabricpulse.why.sources.flight_recorder import COALESCED, Dump, Entry, Transfer

_MOST_MISMATCHES = 5
_MOST_NAMED = 8
# Of these each rank gives as much as the others; of others it may not.
_ALIKE = frozenset(
    f"nccl:{name}"
    for name in ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
)


def _names(dumps: Iterable[Dump]) -> dict[tuple[int, str], str]:
    """What the group of a rank is called: by its members, too, where groups share a name, as those that
    `split_group` makes do."""
    members: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps:
        for group, ranks_of in dump.members.items():
            members[group].add(ranks_of)
    return {
        (dump.rank, group): f"{group} of ranks {', '.join(map(str, ranks_of[:_MOST_NAMED]))}"
        + (", …" if len(ranks_of) > _MOST_NAMED else "")
        for dump in dumps
        for group, ranks_of in dump.members.items()
        if len(members[group]) > 1
    }


def ranks(dumps: Iterable[Dump]) -> tuple[Rank, ...]:
    """How far each rank has come in each process group.

    A rank that has left collectives unfinished has rate 0 where its dump was written when nothing had moved for a
    while, as at a time-out; else none is known. Pure.
    """
    facts, dumps = [], tuple(dumps)
    names = _names(dumps)
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
                    communicator=names.get((dump.rank, group), group),
                    ranks=len(dump.members[group]) if group in dump.members else None,
                    rank=dump.rank,
                    host="",
                    operations=float(ended),
                    rate=0.0 if dump.is_still else None,
                    in_progress=float(enqueued - ended),
                    still_s=dump.still_s(entries),
                )
            )
    return tuple(facts)


def waits(dumps: Iterable[Dump]) -> tuple[Wait, ...]:
    """The oldest send or receive of each pair of ranks that has not ended, and of which the peer has not posted the
    other half.

    Where the peer has, or may have done so before its dump begins, it is not known what it waits for, nor is it behind
    a collective of its group that has not ended. Hosts are not known.
    """
    of = {dump.rank: dump for dump in dumps}
    found = []
    for dump in of.values():
        stuck = _first_open(dump.entries)
        oldest: dict[tuple[int, bool], Transfer] = {}
        for one in dump.transfers:
            peer = _rank_of(dump, one)
            if peer is None or one.is_ended or one.created_ns > stuck.get(one.group, one.created_ns):
                continue
            oldest.setdefault((peer, one.is_send), one)
        for (peer, is_send), one in oldest.items():
            if peer in of and dump.written_s is not None and one.created_ns and _is_late(dump, of[peer], one):
                age_s = max(0.0, dump.written_s - one.created_ns / 1e9)
                found.append(Wait("", dump.rank, "", peer, "peer_receive" if is_send else "peer_send", age_s))
    return tuple(found)


def _first_open(entries: Sequence[Entry]) -> dict[str, int]:
    """Group -> when the oldest collective was enqueued that has not ended."""
    ended: defaultdict[str, int] = defaultdict(int)
    for e in entries:
        if e.state == "completed":
            ended[e.group] = max(ended[e.group], e.sequence)
    found: dict[str, int] = {}
    for e in entries:
        if e.sequence > ended[e.group]:
            found.setdefault(e.group, e.created_ns)
    return found


def _rank_of(dump: Dump, one: Transfer) -> int | None:
    """The peer's number in the job; None where it is not known."""
    members = dump.members.get(one.group)
    if members is None or one.peer >= len(members):
        return None
    return members[one.peer]


def _is_late(dump: Dump, peer: Dump, one: Transfer) -> bool:
    """Whether the peer has not posted the other half."""
    if not dump.is_whole or not peer.is_whole:
        return False
    own = sum(
        t.group == one.group and t.peer == one.peer and t.is_send == one.is_send for t in dump.transfers
    )
    theirs = sum(
        t.group == one.group and _rank_of(peer, t) == dump.rank and t.is_send != one.is_send
        for t in peer.transfers
    )
    return theirs < own


def mismatches(dumps: Iterable[Dump]) -> tuple[str, ...]:
    """Collectives of one number that ranks of a group call by different names or with different sizes, and that have
    not ended everywhere: a deadlock of the program. Pure.

    Only of numbers that are in all dumps whole.
    """
    called: defaultdict[tuple[str, int], dict[int, list[Entry]]] = defaultdict(dict)
    oldest: defaultdict[str, int] = defaultdict(int)
    dumps = tuple(dumps)
    groups = _names(dumps)
    for dump in dumps:
        first: dict[str, int] = {}
        for e in dump.entries:
            group = groups.get((dump.rank, e.group), e.group)
            first.setdefault(group, e.sequence)
            called[group, e.sequence].setdefault(dump.rank, []).append(e)
        for group, sequence in first.items():
            oldest[group] = max(oldest[group], sequence if dump.is_whole else sequence + 1)
    return tuple(
        line
        for (group, sequence), by_rank in sorted(called.items())
        if sequence >= oldest[group]
        and any(e.state != "completed" for entries in by_rank.values() for e in entries[-1:])
        for line in _mismatch(group, sequence, by_rank)
    )[:_MOST_MISMATCHES]


def _mismatch(group: str, sequence: int, by_rank: dict[int, list[Entry]]) -> Iterator[str]:
    by_call: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, entries in by_rank.items():
        if names := tuple(e.name for e in entries if e.name != COALESCED):
            by_call[names].append(rank)
    if len(by_call) == 1 and next(iter(by_call))[0] in _ALIKE and len(next(iter(by_call))) == 1:
        sizes: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for rank, entries in by_rank.items():
            if entries[0].elements is not None:
                sizes[f"{entries[0].name} of {entries[0].elements} elements",].append(rank)
        by_call = sizes
    if len(by_call) > 1:
        called = ", ".join(
            f"{' and '.join(names)} on ranks {', '.join(map(str, who[:4]))}"
            for names, who in sorted(by_call.items())
        )
        yield f"group {group}, collective {sequence}: {called}"
