"""The coordinator's state and its step: who is in the fleet, what they reported, what the solve says.

Nothing here is on disk and nothing is needed from a predecessor: membership comes from leases (and a file, if
there is one), the timeline from the lines that the sidecars send with every report. Pure: time is passed in,
as seconds of any clock that does not jump.

A host has a slot, a number that it keeps; the edges of a host name its peers by slot, so that a step of the whole fleet
is arithmetic on arrays.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.graph_solve import Edges, Hosts, Solution, SolveParameters, solve
from fabricpulse.clocksync.wire import (
    EDGE,
    VERDICT,
    VERDICT_DTYPE,
    EdgeName,
    HostInfo,
    Line,
    Quorum,
    StepReport,
    edge_records,
)

# An edge that is off by more than this many times the usual residual, and this many ns, does not fit.
_MISFIT_SCALE, _MISFIT_NS = 6.0, 300.0
# Misfits that are named.
_NAMED = 20
# A host that moved by more than this between two solves, while it saw no step of its own clock, is not to be
# trusted.
_JUMP_NS = 50_000.0
_SUSPECT_S = 60.0
# Later coordinators of a list wait no longer than this one.
_MOST_RANK = 3
# A fit that is older, or newer than the host's clock, is of no use: seconds.
_OLDEST_S, _NEWEST_S = 120.0, 1.0
# What clocks of one part of a fleet may do together while nobody sees it, as in holdover.
_ALONE_DRIFT_PPB = 1_000.0
_I4 = 2**31 - 1

Ints = NDArray[np.int64]


@dataclass
class Member:
    """A host with a lease. fresh : its report is of after the last solve. expected : it was so in the last solve."""

    name: str
    slot: int
    epoch: int
    expires_s: float
    info: HostInfo | None = None
    report: StepReport | None = None
    received_s: float = 0.0
    fresh: bool = False
    expected: bool = False
    line: Line | None = None
    jumps: int = 0
    steps: int = 0
    suspect: str = ""
    suspect_until_s: float = 0.0
    verdicts: bytes = b""
    misfits: int = 0
    bound_ns: float = float("nan")
    peers: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def usable(self) -> bool:
        """The names of the edges that it reports are known."""
        return (
            self.info is not None
            and self.report is not None
            and self.info.generation == self.report.generation
        )


@dataclass
class Fleet:
    """Members by name. generation : counts changes of membership.

    waiting, missing : members whose report waits for a solve; members that were in the last one and have not reported
    since. begin_s : how long a fleet of which nobody has fleet time yet waits for hosts that others have edges to. Two
    halves that begin apart are two timelines, and clocks that never run backward take hours to become one again.
    anchor_wait_s : the same for the first of the hosts that are to carry UTC, which chronyd may still be setting right;
    a fleet that begins beside UTC takes hours to get there. awaited : those that are waited for now.
    quorum : the latest known; adrift : the last solve had none, so that its timeline may not be the fleet's.
    """

    lease_s: float = 10.0
    stale_s: float = 5.0
    begin_s: float = 3.0
    anchor_wait_s: float = 30.0
    parameters: SolveParameters = field(default_factory=SolveParameters)
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0
    solves: int = 0
    root: str = ""
    misfits: int = 0
    misfit_edges: list[tuple[str, EdgeName, float]] = field(default_factory=list)
    residual_p50_ns: float = 0.0
    unreached: int = 0
    waiting: int = 0
    missing: int = 0
    quorum: Quorum | None = None
    adrift: bool = False
    awaited: tuple[str, ...] = ()
    _slots: dict[str, int] = field(default_factory=dict)
    _first_s: float = 0.0

    def report(self, report: StepReport, now_s: float) -> Member:
        """Takes a report and renews the lease of its host. Raises ValueError when it makes no sense."""
        if len(report.edges) % EDGE.size:
            raise ValueError(f"{len(report.edges)} bytes of edges are no multiple of {EDGE.size}")
        if not self.members:
            self._first_s = now_s
        member = self.members.get(report.host)
        if member is None or member.epoch != report.epoch:
            if member is not None:
                self._forget(member)
            member = Member(report.host, self._slot(report.host), report.epoch, 0.0)
            self.members[report.host] = member
            self.generation += 1
        if report.info is not None and report.info != member.info:
            if member.info is None or (report.info.nics, report.info.url) != (
                member.info.nics,
                member.info.url,
            ):
                self.generation += 1
            member.info = report.info
            member.peers = np.array([self._slot(edge.peer) for edge in report.info.edges], np.int32)
        member.report = report
        member.received_s = now_s
        member.expires_s = now_s + self.lease_s
        if not member.fresh:
            member.fresh = True
            self.waiting += 1
            self.missing -= member.expected
        if not self.root:
            self.root = report.root
        return member

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _forget(self, member: Member) -> None:
        self.waiting -= member.fresh
        self.missing -= member.expected and not member.fresh

    def needs_info(self, member: Member) -> bool:
        """True while the names of the host's edges are not known here."""
        return not member.usable

    def expire(self, now_s: float) -> list[str]:
        """Drops members whose lease has run out and returns their names."""
        gone = [member.name for member in self.members.values() if member.expires_s < now_s]
        for name in gone:
            self._forget(self.members.pop(name))
        if gone:
            self.generation += 1
            if len(self._slots) > 1024 + 4 * len(self.members):
                self._renumber()
        return gone

    def _renumber(self) -> None:
        """Gives up the slots of hosts that are long gone."""
        self._slots.clear()
        for member in self.members.values():
            member.slot = self._slot(member.name)
        for member in self.members.values():
            edges = member.info.edges if member.info is not None else ()
            member.peers = np.array([self._slot(edge.peer) for edge in edges], np.int32)

    def step(self, now_s: float) -> Solution | None:
        """Solves with what is there. Each member's `line` then holds at `ref_host_ns`, about its host time now."""
        self.expire(now_s)
        taken = [
            (m, m.report)
            for m in self.members.values()
            if m.report is not None and now_s - m.received_s <= self.stale_s
        ]
        self.solves += 1
        self.waiting = self.missing = 0
        for member in self.members.values():
            member.expected = member.fresh
            self.missing += member.fresh
            member.fresh = False
            # What the last solve said is no measurement of now.
            member.line = None
        if not taken:
            return None
        members, reports = [m for m, _ in taken], [r for _, r in taken]
        said = _Said.of(members, reports, now_s, _ALONE_DRIFT_PPB * self.stale_s)
        self.awaited = ()
        if not said.known.any() and self._too_early(members, reports, now_s - self._first_s):
            return None
        records, owner, peer = self._fits(members, reports)
        if not len(records):
            return None
        host_now = said.simultaneous()
        latest = max(filter(None, (self.quorum, *(report.quorum for report in reports))), default=None)
        if latest is not None:
            self.root = latest.root
        root = next((k for k, m in enumerate(members) if m.name == self.root), None)
        edges = _edges(records, owner, peer, host_now)
        hosts = said.hosts(host_now, self.parameters)
        solution = solve(hosts, edges, root, self.parameters, latest)
        if not hosts.known.all():
            # Newcomers were only placed by when their report came in; now it is known what their clocks show.
            said.place(solution, host_now)
            host_now = said.simultaneous()
            edges = _edges(records, owner, peer, host_now)
            hosts = said.hosts(host_now, self.parameters)
            solution = solve(hosts, edges, root, self.parameters, latest)
        self._take_quorum(members, hosts, host_now, solution, latest)
        self._deliver(taken, hosts, host_now, solution, now_s)
        self._judge(members, records["edge"], edges, solution)
        return solution

    def _take_quorum(
        self, members: list[Member], hosts: Hosts, host_now: Ints, solution: Solution, latest: Quorum | None
    ) -> None:
        """Remembers what the timeline rests on now, if it is the fleet's."""
        self.quorum, self.adrift = latest, not solution.whole
        if self.adrift:
            return
        self.root = members[solution.root].name
        in_main = solution.component == solution.main
        moment_s = int(host_now[solution.root] + solution.correction_ns[solution.root]) // 10**9
        anchored = bool((in_main & np.isfinite(hosts.anchor_ns)).any())
        self.quorum = Quorum(max(moment_s, 0), int(in_main.sum()), self.root, anchored)

    def _too_early(self, members: list[Member], reports: list[StepReport], waited_s: float) -> bool:
        """Whether a fleet without fleet time should wait for hosts that are to come, or for UTC."""
        to_come = [
            member.name
            for member, report in zip(members, reports, strict=True)
            if member.info is not None and member.info.anchor != "none" and report.anchor is None
        ]
        utc = any(report.anchor is not None for report in reports)
        # Where we are not the first choice, others who may know more begin, and their timeline comes with the reports.
        later = 1 + min(max(report.rank for report in reports), _MOST_RANK)
        # Of one anchor nobody knows whether it is right: others are worth as long a wait as any host.
        anchor_wait_s = self.begin_s if utc else max(self.begin_s, self.anchor_wait_s)
        if to_come and waited_s < anchor_wait_s * later:
            self.awaited = tuple(sorted(to_come))
            return True
        return waited_s < self.begin_s * later and self._incomplete(members)

    @staticmethod
    def _incomplete(members: list[Member]) -> bool:
        """Whether someone is known to be there of whom there is no report."""
        names = {member.name for member in members}
        return any(
            member.info is None or any(edge.peer not in names for edge in member.info.edges)
            for member in members
        )

    def _fits(
        self, members: list[Member], reports: list[StepReport]
    ) -> tuple[NDArray[np.void], NDArray[np.intp], NDArray[np.intp]]:
        """All edge records that can be used, grouped by member; which member's they are, and to which other."""
        blocks = [r.edges if m.usable else b"" for m, r in zip(members, reports, strict=True)]
        records = edge_records(b"".join(blocks))
        counts = np.array([len(block) for block in blocks]) // EDGE.size
        owner = np.repeat(np.arange(len(members)), counts)
        known = np.array([len(member.peers) for member in members])
        first = np.cumsum(known) - known
        slots = np.concatenate([member.peers for member in members])
        index = np.full(len(self._slots), -1, np.intp)
        index[[member.slot for member in members]] = np.arange(len(members))
        valid = records["edge"] < known[owner]
        records, owner = records[valid], owner[valid]
        peer = index[slots[first[owner] + records["edge"]]]
        there = (peer >= 0) & (peer != owner)
        return records[there], owner[there], peer[there]

    def _deliver(
        self,
        taken: list[tuple[Member, StepReport]],
        hosts: Hosts,
        host_now: Ints,
        solution: Solution,
        now_s: float,
    ) -> None:
        # A host that no edge ties to the timeline is in holdover, whatever it still knows: only then does its bound
        # grow as fast as it may be wrong, and only then do people hear of it.
        placed = solution.reached & (solution.component == solution.main)
        moved = np.abs((solution.correction_ns - hosts.correction_ns).astype(np.float64))
        jumped = hosts.known & (moved > _JUMP_NS + hosts.bound_ns)
        rows = zip(
            taken,
            placed.tolist(),
            jumped.tolist(),
            host_now.tolist(),
            solution.correction_ns.tolist(),
            np.rint(solution.rate_ppb * 1000).tolist(),
            solution.bound_ns.tolist(),
            strict=True,
        )
        for (member, report), reached, jump, host_ns, correction_ns, rate_ppt, bound_ns in rows:
            if not reached:
                member.line = None
                continue
            if jump and report.steps == member.steps:
                member.jumps += 1
                member.suspect = "its stamps jumped though its clock did not"
                member.suspect_until_s = now_s + _SUSPECT_S
            elif member.suspect and now_s > member.suspect_until_s:
                member.suspect = ""
            member.steps = report.steps
            member.bound_ns = bound_ns
            member.line = Line(host_ns, correction_ns, int(rate_ppt), math.ceil(bound_ns))
        self.unreached = int((~placed).sum())

    def _judge(
        self, members: list[Member], numbers: NDArray[np.uint16], edges: Edges, solution: Solution
    ) -> None:
        """Names the edges that do not fit, and the host most of whose edges do not."""
        size = np.abs(solution.residual_ns)
        usual = float(np.median(size))
        self.residual_p50_ns = usual
        misfit = size > max(_MISFIT_NS, _MISFIT_SCALE * usual)
        self.misfits = int(misfit.sum())
        n = len(members)
        total = np.bincount(edges.i, minlength=n) + np.bincount(edges.j, minlength=n)
        bad = np.bincount(edges.i[misfit], minlength=n) + np.bincount(edges.j[misfit], minlength=n)
        worst = np.flatnonzero(misfit)
        worst = worst[np.argsort(-size[worst])][:_NAMED]
        self.misfit_edges = [
            (member.name, member.info.edges[int(numbers[e])], float(solution.residual_ns[e]))
            for e in worst
            if (member := members[int(edges.i[e])]).info is not None
        ]
        block = np.zeros(len(size), VERDICT_DTYPE)
        block["edge"] = numbers
        block["residual_ns"] = np.clip(np.rint(solution.residual_ns), -_I4, _I4)
        block["fits"] = ~misfit
        packed = block.tobytes()
        ends = (np.cumsum(np.bincount(edges.i, minlength=n)) * VERDICT.size).tolist()
        begin = 0
        for member, end, misfits in zip(members, ends, bad.tolist(), strict=True):
            member.verdicts = packed[begin:end]
            member.misfits = misfits
            begin = end
        most = bad.max()
        if most > 0 and (bad == most).sum() == 1:
            k = int(bad.argmax())
            if total[k] >= 3 and most > 0.6 * total[k]:
                members[k].suspect = "most of its edges do not fit the fleet"
                members[k].suspect_until_s = members[k].received_s + _SUSPECT_S


@dataclass
class _Said:
    """What the reports of one step say of their hosts, as arrays.

    arrived_ns : what the host's clock shows about now, by when its report came in. known : it has a line.
    """

    arrived_ns: Ints
    known: NDArray[np.bool_]
    ref_ns: Ints
    correction_ns: Ints
    rate_ppt: Ints
    bound_ns: NDArray[np.float64]
    anchor_ns: NDArray[np.float64]
    anchor_bound_ns: NDArray[np.float64]
    unnoticed_ns: NDArray[np.float64]
    placed: NDArray[np.bool_]

    @classmethod
    def of(
        cls, members: list[Member], reports: list[StepReport], now_s: float, unnoticed_ns: float
    ) -> "_Said":
        nowhere = Line(0, 0, 0, 0)
        lines = [report.line or nowhere for report in reports]
        since = np.array([now_s - member.received_s for member in members])
        anchors = [report.anchor or (np.nan, np.inf) for report in reports]
        known = np.array([report.line is not None for report in reports])
        return cls(
            np.array([report.host_ns for report in reports], np.int64)
            + np.rint(since * 1e9).astype(np.int64),
            known,
            np.array([line.ref_host_ns for line in lines], np.int64),
            np.array([line.correction_ns for line in lines], np.int64),
            np.array([line.rate_ppt for line in lines], np.int64),
            np.array([float(line.bound_ns) for line in lines]),
            np.array([float(anchor[0]) for anchor in anchors]),
            np.array([float(anchor[1]) for anchor in anchors]),
            np.array([0.0 if report.adrift else unnoticed_ns for report in reports]),
            known.copy(),
        )

    def _correction_at(self, host_ns: Ints) -> Ints:
        # In two parts: the product of some seconds in ns and a rate in 10^-12 does not fit 64 bits.
        whole, rest = np.divmod(host_ns - self.ref_ns, 10**6)
        return self.correction_ns + (whole * self.rate_ppt + rest * self.rate_ppt // 10**6) // 10**6

    def simultaneous(self) -> Ints:
        """What each host's clock shows at one moment, ns.

        A report says what the host's clock showed when it left; how long it took to get here is not known, and at 100
        ppm of difference 10 ms of it would cost 1 us. So the moment is one of fleet time, which every host with a line
        can name exactly; when the reports came in only says about which.
        """
        if not self.placed.any():
            return self.arrived_ns
        fleet = self.arrived_ns + self._correction_at(self.arrived_ns)
        shown = np.sort(fleet[self.placed])
        moment = shown[len(shown) // 2]
        return np.where(self.placed, self.arrived_ns + (moment - fleet), self.arrived_ns)

    def place(self, solution: Solution, host_now: Ints) -> None:
        """Gives newcomers the lines that a first solve found for them, only to say which moment is meant."""
        new = ~self.placed & solution.reached
        self.ref_ns[new] = host_now[new]
        self.correction_ns[new] = solution.correction_ns[new]
        self.rate_ppt[new] = np.rint(solution.rate_ppb[new] * 1000).astype(np.int64)
        self.placed |= new

    def hosts(self, host_now: Ints, parameters: SolveParameters) -> Hosts:
        """What the hosts know of themselves when their clocks show `host_now`."""
        elapsed_s = np.abs((host_now - self.ref_ns).astype(np.float64)) * 1e-9
        return Hosts(
            np.where(self.known, self._correction_at(host_now), 0),
            np.where(self.known, self.rate_ppt * 1e-3, 0.0),
            self.known,
            np.where(self.known, self.bound_ns + parameters.drift_ppb * elapsed_s, np.inf),
            self.anchor_ns,
            self.anchor_bound_ns,
            self.unnoticed_ns,
        )


def _edges(
    records: NDArray[np.void], owner: NDArray[np.intp], peer: NDArray[np.intp], host_now: Ints
) -> Edges:
    age_s = (host_now[owner] - records["t_ns"]) * 1e-9
    # What makes no sense stays in its place, so that verdicts find theirs, and weighs nothing.
    sane = (age_s >= -_NEWEST_S) & (age_s <= _OLDEST_S)
    age_s = np.where(sane, age_s, 0.0)
    sigma = np.where(sane, np.maximum(records["sigma_ns"], 1), 1e9)
    rate_sigma = np.where(sane, np.maximum(records["rate_sigma_ppt"] * 1e-3, 0.1), 1e9)
    bound = np.where(sane, records["bound_ns"].astype(np.float64), 1e12)
    return Edges(
        owner,
        peer,
        records["offset_ns"].astype(np.int64),
        records["rate_ppt"] * 1e-3,
        sigma,
        rate_sigma,
        bound,
        age_s,
        age_s - records["last_after_us"] * 1e-6,
    )
