"""The coordinator's state and its step: who is in the fleet, what they reported, what the solve says.

Nothing here is on disk and nothing is needed from a predecessor: membership comes from leases (and a file, if
there is one), the timeline from the lines that the sidecars send with every report. Pure: time is passed in,
as seconds of any clock that does not jump.
"""

from dataclasses import dataclass, field

import numpy as np

from fabricpulse.clocksync.graph_solve import Edges, Hosts, Solution, SolveParameters, solve
from fabricpulse.clocksync.wire import EdgeName, EdgeVerdict, HostInfo, Line, StepReport

# An edge that is off by more than this many times the usual residual, and this many ns, does not fit.
_MISFIT_SCALE, _MISFIT_NS = 6.0, 300.0
# A host that moved by more than this between two solves, while it saw no step of its own clock, is not to be
# trusted.
_JUMP_NS = 50_000.0
_SUSPECT_S = 60.0


@dataclass
class Member:
    """A host with a lease."""

    name: str
    epoch: int
    expires_s: float
    info: HostInfo | None = None
    report: StepReport | None = None
    received_s: float = 0.0
    line: Line | None = None
    last_solve: int = -1
    jumps: int = 0
    steps: int = 0
    suspect: str = ""
    suspect_until_s: float = 0.0
    verdicts: tuple[EdgeVerdict, ...] = ()
    bound_ns: float = float("nan")


@dataclass
class Fleet:
    """Members by name. generation : counts changes of membership."""

    lease_s: float = 10.0
    stale_s: float = 5.0
    parameters: SolveParameters = field(default_factory=SolveParameters)
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0
    solves: int = 0
    root: str = ""
    misfit_edges: list[tuple[str, EdgeName, float]] = field(default_factory=list)
    residual_p50_ns: float = 0.0
    unreached: int = 0

    def report(self, report: StepReport, now_s: float) -> Member:
        """Takes a report and renews the lease of its host."""
        member = self.members.get(report.host)
        if member is None or member.epoch != report.epoch:
            member = Member(report.host, report.epoch, 0.0)
            self.members[report.host] = member
            self.generation += 1
        if report.info is not None and report.info != member.info:
            if member.info is None or (report.info.nics, report.info.url) != (
                member.info.nics,
                member.info.url,
            ):
                self.generation += 1
            member.info = report.info
        member.report = report
        member.received_s = now_s
        member.expires_s = now_s + self.lease_s
        if not self.root:
            self.root = report.root
        return member

    def needs_info(self, member: Member) -> bool:
        """True while the names of the host's edges are not known here."""
        return member.info is None or (
            member.report is not None and member.info.generation != member.report.generation
        )

    def expire(self, now_s: float) -> list[str]:
        """Drops members whose lease has run out and returns their names."""
        gone = [member.name for member in self.members.values() if member.expires_s < now_s]
        for name in gone:
            del self.members[name]
        if gone:
            self.generation += 1
        return gone

    def waiting(self) -> int:
        """How many members have a report that no solve has used yet."""
        return sum(
            member.last_solve != self.solves and member.report is not None for member in self.members.values()
        )

    def step(self, now_s: float) -> Solution | None:
        """Solves with what is there. Each member's `line` then holds at `ref_host_ns`, about its host time now."""
        self.expire(now_s)
        members = [
            m for m in self.members.values() if m.report is not None and now_s - m.received_s <= self.stale_s
        ]
        index = {member.name: k for k, member in enumerate(members)}
        self.solves += 1
        for member in members:
            member.last_solve = self.solves
        lines = [member.report.line if member.report is not None else None for member in members]
        host_now = _simultaneous(members, lines, now_s)
        edges, names = _edges(members, index, host_now)
        if not len(edges.i):
            return None
        hosts = _hosts(members, host_now, self.parameters)
        solution = solve(hosts, edges, index.get(self.root), self.parameters)
        if not hosts.known.all():
            # Newcomers were only placed by when their report came in; now it is known what their clocks show.
            lines = [
                line
                if line is not None or not solution.reached[k]
                else _provisional(solution, k, host_now[k])
                for k, line in enumerate(lines)
            ]
            host_now = _simultaneous(members, lines, now_s)
            edges, names = _edges(members, index, host_now)
            hosts = _hosts(members, host_now, self.parameters)
            solution = solve(hosts, edges, index.get(self.root), self.parameters)
        self.root = members[solution.root].name
        self._deliver(members, hosts, host_now, solution, now_s)
        self._judge(members, names, edges, solution)
        return solution

    def _deliver(
        self, members: list[Member], hosts: Hosts, host_now: list[int], solution: Solution, now_s: float
    ) -> None:
        for k, member in enumerate(members):
            report = member.report
            if not solution.reached[k] or report is None:
                member.line = None
                continue
            moved = abs(float(solution.correction_ns[k] - hosts.correction_ns[k]))
            if hosts.known[k] and moved > _JUMP_NS + hosts.bound_ns[k] and report.steps == member.steps:
                member.jumps += 1
                member.suspect = "its stamps jumped though its clock did not"
                member.suspect_until_s = now_s + _SUSPECT_S
            elif member.suspect and now_s > member.suspect_until_s:
                member.suspect = ""
            member.steps = report.steps
            member.bound_ns = float(solution.bound_ns[k])
            member.line = Line(
                host_now[k],
                int(solution.correction_ns[k]),
                round(float(solution.rate_ppb[k]) * 1000),
                int(np.ceil(solution.bound_ns[k])),
            )
        self.unreached = int((~solution.reached).sum())

    def _judge(
        self, members: list[Member], names: list[tuple[int, int]], edges: Edges, solution: Solution
    ) -> None:
        """Names the edges that do not fit, and the hosts most of whose edges do not."""
        size = np.abs(solution.residual_ns)
        usual = float(np.median(size))
        self.residual_p50_ns = usual
        misfit = size > max(_MISFIT_NS, _MISFIT_SCALE * usual)
        verdicts: list[list[EdgeVerdict]] = [[] for _ in members]
        bad = np.zeros(len(members))
        total = np.zeros(len(members))
        np.add.at(total, edges.i, 1)
        np.add.at(total, edges.j, 1)
        np.add.at(bad, edges.i[misfit], 1)
        np.add.at(bad, edges.j[misfit], 1)
        self.misfit_edges = []
        order = np.argsort(-size)
        rank = np.empty(len(order), np.intp)
        rank[order] = np.arange(len(order))
        for e, (k, edge) in enumerate(names):
            verdicts[k].append(EdgeVerdict(edge, round(float(solution.residual_ns[e])), not bool(misfit[e])))
            if misfit[e] and rank[e] < 20:
                info = members[k].info
                if info is not None:
                    self.misfit_edges.append(
                        (members[k].name, info.edges[edge], float(solution.residual_ns[e]))
                    )
        for k, member in enumerate(members):
            member.verdicts = tuple(verdicts[k])
            if (
                total[k] >= 3
                and bad[k] > 0.6 * total[k]
                and bad[k] == bad.max()
                and (bad == bad.max()).sum() == 1
            ):
                member.suspect = "most of its edges do not fit the fleet"
                member.suspect_until_s = member.received_s + _SUSPECT_S


def _simultaneous(members: list[Member], lines: list[Line | None], now_s: float) -> list[int]:
    """What each host's clock shows at one moment, ns.

    A report says what the host's clock showed when it left; how long it took to get here is not known, and at 100 ppm
    of difference 10 ms of it would cost 1 us. So the moment is one of fleet time, which every host with a line can
    name exactly; `now_s` only says about which.
    """
    arrived = []
    fleet: list[int | None] = []
    for member, line in zip(members, lines, strict=True):
        if member.report is None:
            raise ValueError(f"{member.name} has not reported")
        here = member.report.host_ns + round((now_s - member.received_s) * 1e9)
        arrived.append(here)
        fleet.append(None if line is None else here + _correction_at(line, here))
    kept = sorted(value for value in fleet if value is not None)
    if not kept:
        return arrived
    moment = kept[len(kept) // 2]
    return [
        here if shown is None else here + (moment - shown) for here, shown in zip(arrived, fleet, strict=True)
    ]


def _correction_at(line: Line, host_ns: int) -> int:
    return line.correction_ns + (host_ns - line.ref_host_ns) * line.rate_ppt // 10**12


def _provisional(solution: Solution, k: int, host_ns: int) -> Line:
    return Line(host_ns, int(solution.correction_ns[k]), round(float(solution.rate_ppb[k]) * 1000), 0)


def _edges(
    members: list[Member], index: dict[str, int], host_now: list[int]
) -> tuple[Edges, list[tuple[int, int]]]:
    rows: list[tuple[int, int, int, float, float, float, float, float, float]] = []
    names: list[tuple[int, int]] = []
    for k, member in enumerate(members):
        report, info = member.report, member.info
        if report is None or info is None or info.generation != report.generation:
            continue
        for edge in report.edges:
            peer = index.get(info.edges[edge.edge].peer) if edge.edge < len(info.edges) else None
            if peer is None or peer == k:
                continue
            age = (host_now[k] - edge.t_ns) * 1e-9
            rows.append(
                (
                    k, peer, edge.offset_ns, edge.rate_ppt * 1e-3, max(edge.sigma_ns, 1),
                    max(edge.rate_sigma_ppt * 1e-3, 0.1), edge.bound_ns, age, age - edge.last_after_ns * 1e-9,
                )
            )  # fmt: skip
            names.append((k, edge.edge))
    columns: list[tuple[float, ...]] = list(zip(*rows, strict=True)) if rows else [()] * 9
    reals = [np.array(column, np.float64) for column in columns[3:]]
    return (
        Edges(
            np.array(columns[0], np.intp),
            np.array(columns[1], np.intp),
            np.array(columns[2], np.int64),
            *reals,
        ),
        names,
    )


def _hosts(members: list[Member], host_now: list[int], parameters: SolveParameters) -> Hosts:
    """What the hosts know of themselves when their clocks show `host_now`."""
    n = len(members)
    correction = np.zeros(n, np.int64)
    rate = np.zeros(n)
    known = np.zeros(n, np.bool_)
    bound = np.full(n, np.inf)
    anchor = np.full(n, np.nan)
    anchor_bound = np.full(n, np.inf)
    for k, member in enumerate(members):
        report = member.report
        if report is None:
            raise ValueError(f"{member.name} has not reported")
        if report.line is not None:
            correction[k] = _correction_at(report.line, host_now[k])
            rate[k] = report.line.rate_ppt * 1e-3
            known[k] = True
            elapsed = abs(host_now[k] - report.line.ref_host_ns)
            bound[k] = report.line.bound_ns + parameters.drift_ppb * elapsed * 1e-9
        if report.anchor is not None:
            anchor[k], anchor_bound[k] = report.anchor
    return Hosts(correction, rate, known, bound, anchor, anchor_bound)
