"""The coordinator's state and its round: who is in the fleet, what they reported, what the solve says.

Nothing here is on disk and nothing is needed from a predecessor: membership comes from leases (and a file, if
there is one), the timeline from the lines that the sidecars send with every report. Pure: time is passed in,
as seconds of any clock that does not jump. Who the hosts are is `roster`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.anchor_rates import UtcRate, anchor_rates
from fabricpulse.clocksync.coordinator.duplicate_hosts import DUPLICATE
from fabricpulse.clocksync.coordinator.estimated_error import remember
from fabricpulse.clocksync.coordinator.fault_detection import FaultDetector
from fabricpulse.clocksync.coordinator.members import Member
from fabricpulse.clocksync.coordinator.nic_biases import NicBiases
from fabricpulse.clocksync.coordinator.root_moves import RootMoves
from fabricpulse.clocksync.coordinator.roster import Roster
from fabricpulse.clocksync.solve.graph_solve import Edges, Solution, SolveParameters, solve
from fabricpulse.clocksync.solve.hosts import Hosts
from fabricpulse.clocksync.solve.quorum import Election
from fabricpulse.clocksync.solve.solve_input import Ints, RoundInput, edge_input
from fabricpulse.clocksync.wire.messages import EDGE, EdgeName, Quorum, RoundReport
from fabricpulse.clocksync.wire.report_table import Records, ReportTable, name_hash

# Outliers that are named.
_NAMED = 20
# Quantiles over the edges.
_SHARES = (0.5, 0.99)
# Later coordinators of a list wait no longer than this one.
_MOST_RANK = 3
_I4 = 2**31 - 1
# Rates that are off by more: no oscillator is, and no slew.
_MOST_PPB = 1_000_000.0


@dataclass
class Fleet:
    """The fleet of one coordinator.

    waiting, missing : members whose report by HTTP waits for a solve; members that were in the last one and have not
    reported since. begin_s : how long a fleet without fleet time waits for hosts that others have edges
    to. Two halves that begin apart are two timelines, and clocks that never run backward take hours to become one
    again. anchor_wait_s : the same for the first of the hosts that are to carry UTC, which chronyd may still be setting
    right; a fleet that begins beside UTC takes hours to get there. holdover_drift_ppb : what the clocks of one part of
    a fleet, or all that follow an anchor, may do together unseen. awaited : those that are waited for
    now. held_out_ns : share of the edges -> what their Solution.held_out_ns is within; empty where none has others
    beside it. expired : whose leases had run out at the last round. on_expired : called with each member that is no
    longer one. quorum : the latest known; no_quorum : the last solve had none, so that its timeline may not be the
    fleet's.
    """

    lease_s: float = 10.0
    stale_s: float = 5.0
    begin_s: float = 3.0
    anchor_wait_s: float = 30.0
    holdover_drift_ppb: float = 1_000.0
    parameters: SolveParameters = field(default_factory=SolveParameters)
    roster: Roster = field(default_factory=Roster)
    on_expired: Callable[[Member], None] = lambda _: None
    solves: int = 0
    root: str = ""
    outliers: int = 0
    outlier_edges: list[tuple[str, EdgeName, float]] = field(default_factory=list)
    residual_p50_ns: float = 0.0
    held_out_ns: dict[float, float] = field(default_factory=dict)
    unreached: int = 0
    missing: int = 0
    quorum: Quorum | None = None
    no_quorum: bool = False
    root_moves: RootMoves = field(default_factory=RootMoves)
    awaited: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    nic_biases: NicBiases = field(default_factory=NicBiases)
    utc_rate: UtcRate = field(default_factory=UtcRate)
    _table: ReportTable = field(default_factory=ReportTable)
    # Slots that have reported by HTTP since the last solve, and whether they will again; those that were so before it.
    _fresh: dict[int, bool] = field(default_factory=dict)
    _expected: set[int] = field(default_factory=set)
    _first_s: float = 0.0
    # When the root was last part of the fleet, or might have been: unknown before the first solve.
    _root_s: float | None = None

    def __post_init__(self) -> None:
        self._faults = FaultDetector(self.roster.columns, self.stale_s)
        self.roster.on_expired = self._left

    @property
    def waiting(self) -> int:
        """Members whose report by HTTP waits for a solve."""
        return len(self._fresh)

    def report(self, report: RoundReport, now_s: float, *, again: bool = True) -> Member:
        """Takes a report and renews the lease of its host. Raises ValueError when it makes no sense, NameTakenError or
        NameHeldError when another sidecar reports under the same name, or did so just now.

        again : its next report will come this way too, so that the solve after the next waits for it.
        """
        if len(report.edges) % EDGE.size:
            raise ValueError(f"{len(report.edges)} bytes of edges are no multiple of {EDGE.size}")
        for name in ("clock_steps", "generation", "rank"):
            if not 0 <= getattr(report, name) <= _I4:
                raise ValueError(f"{name} does not lie within 0 and {_I4}")
        if report.info is not None and not 0 <= report.info.generation <= _I4:
            raise ValueError(f"generation of info does not lie within 0 and {_I4}")
        first = not self.roster.members
        member = self.roster.admit(report.host, report.epoch, now_s, self.lease_s)
        if first:
            self._first_s = now_s
        if report.quorum is not None:
            # Its rows say only the hash.
            self.roster.slot(report.quorum.root)
        if report.info is not None:
            self.roster.take_info(member, report.info)
        columns, slot = self.roster.columns.at, member.slot
        self._table.add(slot, report, now_s)
        columns["generation"][slot] = report.generation
        columns["received_s"][slot] = now_s
        columns["expires_s"][slot] = now_s + self.lease_s
        if slot not in self._fresh:
            self.missing -= slot in self._expected
        self._fresh[slot] = again
        if not self.root:
            self.root = report.root
        return member

    def _left(self, member: Member) -> None:
        slot = member.slot
        if slot not in self._fresh:
            self.missing -= slot in self._expected
        self._fresh.pop(slot, None)
        self._expected.discard(slot)
        self.on_expired(member)

    def needs_info(self, member: Member) -> bool:
        """True while the names of the host's edges are not known here."""
        return not member.usable

    def expire(self, now_s: float) -> list[str]:
        """Drops members whose lease has run out and returns their names."""
        expired = self.roster.expire(now_s, self.lease_s)
        if self.roster.crowded:
            self._table.settle(self.roster.slots)
            # Rows say only the hash of a root, which need not be a member yet.
            roots = map(self.roster.name, np.unique(self._table.rows["quorum_root"]).tolist())
            lasting = [self.roster.slot(root) for root in roots if root]
            moved = self.roster.renumber(lasting + self._faults.witnesses().tolist())
            self._fresh = {int(moved[slot]): again for slot, again in self._fresh.items()}
            self._expected = {int(moved[slot]) for slot in self._expected}
            self._table.renumber(moved)
            self._faults.renumber(moved)
        return expired

    def solve_round(self, now_s: float, arrived: tuple[Records, Records] | None = None) -> Solution | None:
        """Solves with what is there. Each member's `line` then holds at `ref_host_ns`, about its host time now.

        arrived : reports that came as rows of ROW_DTYPE (their `slot` those of members) and their edge records. They
        renew leases too.
        """
        self._table.settle(self.roster.slots, arrived)
        if arrived is not None:
            slots = arrived[0]["slot"]
            for name in ("received_s", "generation"):
                self.roster.columns.at[name][slots] = arrived[0][name]
            self.roster.columns.at["expires_s"][slots] = arrived[0]["received_s"] + self.lease_s
        self.expired = tuple(self.expire(now_s))
        columns = self.roster.columns.at
        rows = self._table.rows
        self._table.keep((now_s - rows["received_s"] <= self.stale_s) & columns["joined"][rows["slot"]])
        rows = self._table.rows
        self.solves += 1
        self._expected = {slot for slot, again in self._fresh.items() if again}
        self._fresh = {}
        self.missing = len(self._expected)
        # The last solve is no measurement of now.
        placed = columns["placed"].copy()
        columns["placed"] = False
        columns["estimated_error_ns"] = 0
        columns["reported_edges"] = 0
        columns["reported_edges"][rows["slot"]] = rows["edges"]
        if not len(rows):
            return None
        utc = anchor_rates(self.roster.columns, rows)
        unnoticed_ns = self.holdover_drift_ppb * self.stale_s
        reported = RoundInput.from_reports(rows, now_s, unnoticed_ns, utc.rate_ppb, utc.off_ppb)
        self.awaited = ()
        if not reported.known.any() and self._too_early(rows, now_s - self._first_s):
            return None
        records, owner, peer, places = self._fits(rows)
        if not len(records):
            return None
        host_now = reported.simultaneous()
        drift_ppb = self.parameters.drift_ppb
        if rows["anchored"].any():
            # All follow an anchor, whose clock may be free by now: chronyd has died, or reaches no server.
            drift_ppb = max(drift_ppb, self.holdover_drift_ppb)
        # Beside what its line says itself until its report: since then it runs at a rate that may be off.
        drift_ppb = drift_ppb + columns["drift_ppb"][rows["slot"]].astype(np.float64)
        election = self._election(rows, reported, now_s)
        parameters = replace(self.parameters, holdover_drift_ppb=self.holdover_drift_ppb)
        bias_ns = self.nic_biases.of_edges(self.roster.nics(), places)
        edges = edge_input(records, owner, peer, host_now, bias_ns)
        slots = rows["slot"]
        reported.missed_ns = self.root_moves.missed_ns(rows, election.quorum)
        hosts = self._faults.trusted(reported.hosts(host_now, drift_ppb), slots)
        solution = solve(hosts, edges, election, parameters)
        if not reported.placed.all():
            # Newcomers were only placed by when their report came in; now it is known what their clocks show.
            reported.place(solution, host_now)
            host_now = reported.simultaneous()
            edges = edge_input(records, owner, peer, host_now, bias_ns)
            hosts = self._faults.trusted(reported.hosts(host_now, drift_ppb), slots)
            solution = solve(hosts, edges, election, parameters)
        jumped = self._faults.watch(rows, hosts, host_now, solution, now_s)
        if (jumped & rows["anchored"]).any():
            # The fleet need not follow it even once.
            hosts = self._faults.trusted(reported.hosts(host_now, drift_ppb), slots)
            solution = solve(hosts, edges, election, parameters)
        self._take_quorum(rows, hosts, host_now, solution, election.quorum)
        counts = solution.has_quorum and not solution.announced
        if not solution.root_lost and (solution.root == election.root or counts):
            self._root_s = now_s
        self.nic_biases.learn(places, edges, solution)
        # By the last solve, whose replies hosts may not have received.
        last_ppb = np.where(placed[slots], columns["rate_ppt"][slots] * 1e-3, hosts.rate_ppb)
        anchored = self.quorum is not None and self.quorum.anchored
        unsure_ppb = self.utc_rate.take(last_ppb, hosts, solution, utc, now_s, anchored=anchored)
        self._deliver(rows, host_now, solution, unsure_ppb)
        self._assess(rows, records["edge"], edges, solution, now_s)
        return solution

    def voting_members(self, now_s: float) -> int:
        """Members whose last report is recent enough to vote (Election.of)."""
        columns = self.roster.columns.at
        return int((columns["joined"] & (now_s - columns["received_s"] <= self.stale_s / 2)).sum())

    def _election(self, rows: Records, reported: RoundInput, now_s: float) -> Election:
        fleet_ns = reported.fleet_ns()
        if self._root_s is None:
            self._root_s = now_s
        election = Election.of(
            rows,
            self.roster.columns.at["name"][rows["slot"]],
            self.quorum,
            self._name,
            rested=self.roster.columns.at["rested"][rows["slot"]],
            reporting=now_s - rows["received_s"] <= self.stale_s / 2,
            away_s=self.lease_s,
            fleet_s=None if fleet_ns is None else fleet_ns // 10**9,
            first=self.root,
        )
        if election.quorum is None:
            return election
        self.root = election.quorum.root
        known_s = -1 if self.quorum is None else self.quorum.moment_s
        if election.root is None and election.quorum.moment_s > known_s:
            # Of another coordinator that has it: this one gives no moment without it.
            self._root_s = now_s
        if election.quorum.moment_s > known_s and self.root != self.root_moves.root:
            # It may have counted elsewhere.
            self.root_moves.root = ""
        counted = np.flatnonzero(election.order == np.uint64(name_hash(self.root_moves.root)))
        former = int(counted[0]) if len(counted) else None
        return replace(election, followed=now_s - self._root_s <= self.stale_s, former=former)

    def _name(self, hashed: int) -> str:
        """The host whose name has this hash; "" when none is known here, so that it is the root of no host."""
        if self.quorum is not None and hashed == name_hash(self.quorum.root):
            return self.quorum.root
        return self.roster.name(hashed)

    def _take_quorum(
        self, rows: Records, hosts: Hosts, host_now: Ints, solution: Solution, latest: Quorum | None
    ) -> None:
        """Remembers what the timeline rests on now, if it is the fleet's."""
        self.quorum, self.no_quorum = latest, not solution.has_quorum
        if self.no_quorum or solution.root_lost:
            return
        self.root = self.roster.at(int(rows["slot"][solution.root])).name
        in_main = solution.component == solution.main
        self.roster.columns.at["rested"] = False
        self.roster.columns.at["rested"][rows["slot"][in_main]] = True
        moment_s = int(host_now[solution.root] + solution.correction_ns[solution.root]) // 10**9
        anchored = bool((in_main & np.isfinite(hosts.anchor_ns)).any())
        members = int(in_main.sum())
        if not solution.announced:
            self.root_moves.root = self.root
        elif latest is not None:
            # Before hosts have it from here, another root may be what most of the last quorum go on with.
            members, same = max(members, latest.hosts), self.root == latest.root and members <= latest.hosts
            members |= not same
        self.quorum = Quorum(max(moment_s, 0), members, self.root, anchored)
        self.root_moves.add(latest, self.quorum, solution.root_moved_ns)

    def _too_early(self, rows: Records, waited_s: float) -> bool:
        """Whether a fleet without fleet time should wait for hosts that are to come, or for UTC."""
        silent = [self.roster.at(slot) for slot in rows["slot"][~rows["anchored"]].tolist()]
        to_come = [m.name for m in silent if m.info is not None and m.info.anchor != "none"]
        utc = bool(rows["anchored"].any())
        # Where we are not the first choice, others with more reports begin; their timeline comes with later reports.
        later = 1 + min(int(rows["rank"].max()), _MOST_RANK)
        # With one anchor its error cannot be detected: others are worth as long a wait as any host.
        anchor_wait_s = self.begin_s if utc else max(self.begin_s, self.anchor_wait_s)
        if to_come and waited_s < anchor_wait_s * later:
            self.awaited = tuple(sorted(to_come))
            return True
        return waited_s < self.begin_s * later and self._incomplete(rows)

    def _incomplete(self, rows: Records) -> bool:
        """Whether someone is known to be there of whom there is no report."""
        flat, begin = self.roster.peers()
        columns, slots = self.roster.columns.at, rows["slot"]
        if (columns["info"][slots] < 0).any():
            return True
        reported = np.zeros(self.roster.slots, np.bool_)
        reported[slots] = True
        owner = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
        return bool((reported[owner] & ~reported[flat]).any())

    def _fits(self, rows: Records) -> tuple[Records, NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """All edge records that can be used, grouped by row; which row's they are, to which other, and their places
        among the edges of all slots (Roster.peers)."""
        columns, slots = self.roster.columns.at, rows["slot"].astype(np.intp)
        flat, begin = self.roster.peers()
        records = self._table.records
        owner = np.repeat(np.arange(len(rows)), rows["edges"])
        usable = (columns["info"][slots] >= 0) & (columns["info"][slots] == rows["generation"])
        known = np.where(usable, begin[slots + 1] - begin[slots], 0)
        index = np.full(self.roster.slots, -1, np.intp)
        index[slots] = np.arange(len(rows))
        valid = records["edge"] < known[owner]
        if not valid.all():
            records, owner = records[valid], owner[valid]
        places = begin[slots][owner] + records["edge"]
        peer = index[flat[places]]
        there = (peer >= 0) & (peer != owner)
        if there.all():
            return records, owner, peer, places
        return records[there], owner[there], peer[there], places[there]

    def _deliver(self, rows: Records, host_now: Ints, solution: Solution, unsure_ppb: float) -> None:
        # A host that no edge ties to the timeline is in holdover, whatever it still knows: only then does its bound
        # grow as fast as it may be wrong, and only then is it alerted.
        placed = solution.placed
        columns = self.roster.columns.at
        slots = rows["slot"][placed]
        columns["placed"][slots] = True
        columns["ref_ns"][slots] = host_now[placed]
        columns["correction_ns"][slots] = solution.correction_ns[placed]
        columns["rate_ppt"][slots] = np.rint(solution.rate_ppb[placed] * 1000).astype(np.int64)
        columns["bound_ns"][slots] = solution.bound_ns[placed]
        columns["drift_ppb"][slots] = np.ceil(
            np.minimum(solution.rate_doubt_ppb[placed] + unsure_ppb, _MOST_PPB)
        )
        # Of a host whose stamps jumped fleet time is as wrong as they are.
        bound_ns = solution.bound_ns[placed] + np.abs(columns["jump_ns"][slots])
        columns["line_bound_ns"][slots] = np.ceil(bound_ns).astype(np.int64)
        self.unreached = int((~placed).sum())
        # Their next report will say so. A solve before that, for newcomers, would else begin another timeline.
        begun = placed & ~rows["known"]
        rows["known"] |= begun
        for name, column in (
            ("ref_ns", "ref_ns"),
            ("correction_ns", "correction_ns"),
            ("rate_ppt", "rate_ppt"),
            ("bound_ns", "line_bound_ns"),
        ):
            rows[name][begun] = columns[column][rows["slot"][begun]]

    def _assess(
        self, rows: Records, numbers: NDArray[np.uint16], edges: Edges, solution: Solution, now_s: float
    ) -> None:
        """Finds the outlier edges and the suspected hosts."""
        outlier = self._faults.assess(rows, numbers, edges, solution, now_s)
        size = np.abs(solution.residual_ns)
        self.residual_p50_ns = float(np.median(size))
        columns, slots = self.roster.columns, rows["slot"].astype(np.intp)
        # Most of the room of a small fleet is empty, and all of it is traversed.
        held_out = columns.held_out[: self.roster.slots]
        likely_ns = remember(held_out, solution.held_out_ns, slots[edges.i], slots[edges.j])
        placed = slots[solution.placed]
        # The root has hardly an error, by definition, though its edges have theirs.
        most_ns = columns.at["line_bound_ns"][placed]
        columns.at["estimated_error_ns"][placed] = np.minimum(likely_ns[placed], np.maximum(most_ns, 1))
        known = np.abs(solution.held_out_ns[np.isfinite(solution.held_out_ns)])
        self.held_out_ns = (
            {share: float(np.quantile(known, share)) for share in _SHARES} if len(known) else {}
        )
        self.outliers = int(outlier.sum())
        worst = np.flatnonzero(outlier)
        worst = worst[np.argsort(-size[worst])][:_NAMED]
        self.outlier_edges = [
            (member.name, self.roster.edges(member)[int(numbers[e])], float(solution.residual_ns[e]))
            for e in worst
            for member in [self.roster.at(int(rows["slot"][edges.i[e]]))]
            if int(numbers[e]) < len(member.edges)
        ]

    def nic_bias_ns(self, member: Member) -> dict[str, float]:
        """By device: NicBiases.bias_ns; empty where all its edges are of one, or their names are not known."""
        numbers, edges = self.roster.nics(), self.roster.edges(member)
        begin = int(self.roster.peers()[1][member.slot])
        return self.nic_biases.of_devices(numbers, begin, [edge.device for edge in edges])

    def worst_nics(self) -> list[tuple[str, str, float]]:
        """Host, device and bias of those whose stamps are furthest from their hosts' others."""
        slots = self.nic_biases.worst_slots(self.roster.nics(), _NAMED)
        hosts = [member for slot in slots if (member := self.roster.find(slot)) is not None]
        nics = [(m.name, device, ns) for m in hosts for device, ns in self.nic_bias_ns(m).items()]
        return sorted(nics, key=lambda nic: -abs(nic[2]))[:_NAMED]

    def suspects(self) -> dict[str, str]:
        """The reason, for each suspected member, and each name that two hosts report under."""
        columns = self.roster.columns.at
        slots = np.flatnonzero(columns["joined"] & (columns["suspect"] > 0)).tolist()
        suspects = {(member := self.roster.at(slot)).name: member.suspect for slot in slots}
        return suspects | dict.fromkeys(self.roster.duplicates, DUPLICATE)
