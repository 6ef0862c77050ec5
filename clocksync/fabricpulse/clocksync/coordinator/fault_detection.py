"""Fault detection after a solve: residuals of edges, suspected hosts, and how much wider a suspect's bound must be."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.doubted_hosts import DoubtedHosts
from fabricpulse.clocksync.coordinator.members import Columns
from fabricpulse.clocksync.solve.graph_solve import Edges, Solution
from fabricpulse.clocksync.solve.hosts import Hosts
from fabricpulse.clocksync.solve.outliers import HOLD_S, faulty_hosts, outlier_limits_ns, unexplained_jumps
from fabricpulse.clocksync.solve.solve_input import Ints
from fabricpulse.clocksync.wire.messages import RESIDUAL, RESIDUAL_DTYPE
from fabricpulse.clocksync.wire.report_table import Records
from fabricpulse.clocksync.wire.suspicions import CONTRADICTING, DISPUTED, JUMPED, OUTLYING, UNKNOWN

Bools = NDArray[np.bool_]

# After a clock step some edges still rest on pre-step samples, each until its estimation window is over.
_SETTLING_S = 10.0
_I4 = 2**31 - 1


class FaultDetector:
    """Of the hosts of `columns`. stale_s : what a solve said holds for so long."""

    def __init__(self, columns: Columns, stale_s: float) -> None:
        self._columns = columns
        self._stale_s = stale_s
        self._doubted = DoubtedHosts(columns)

    def witnesses(self) -> NDArray[np.int64]:
        """Slots that their hosts are to keep, also when their leases have run out."""
        return self._doubted.witnesses()

    def renumber(self, slot_of: NDArray[np.int32]) -> None:
        """Hosts have new slots: slot_of[old], -1 for those that have none any more."""
        self._doubted.renumber(slot_of)

    def trusted(self, hosts: Hosts, slots: NDArray[np.intp]) -> Hosts:
        """`hosts` with each jumped anchor's UTC offset reverted to its pre-jump value and its bound widened by the
        jump, and with the doubt that former solves left.

        Its UTC is measured with the stamps that jumped, and the fleet would follow them.
        """
        hosts = replace(hosts, doubt_ns=self._columns.at["doubt_ns"][slots])
        jump = self._columns.at["jump_ns"][slots]
        if not (np.isfinite(hosts.anchor_ns) & (jump != 0)).any():
            return hosts
        return replace(
            hosts, anchor_ns=hosts.anchor_ns + jump, anchor_bound_ns=hosts.anchor_bound_ns + np.abs(jump)
        )

    def watch(self, rows: Records, hosts: Hosts, host_now: Ints, solution: Solution, now_s: float) -> Bools:
        """Detects hosts whose stamps jumped; returns which did so now.

        Comes before the lines of this solve are entered.
        """
        columns, slots, placed = self._columns.at, rows["slot"], solution.placed
        stepped = placed & (rows["clock_steps"] != columns["clock_steps"][slots])
        columns["jump_ns"][slots[stepped]] = 0.0
        columns["jumped_s"][slots[stepped]] = -np.inf
        columns["stepped_s"][slots[stepped]] = now_s
        columns["clock_steps"][slots[placed]] = rows["clock_steps"][placed]
        # The line it was sent counts, as a reply may be lost, or refused. At a step only the host knows its line, which
        # it carried over the step; from then on the sum of what solves moved it by is how far it is from there.
        sent = (now_s - columns["placed_s"][slots] <= self._stale_s) & ~stepped
        columns["placed_s"][slots[placed]] = now_s
        since_ns = np.where(sent, host_now - columns["ref_ns"][slots], 0).astype(np.float64)
        turned = np.rint(since_ns * columns["rate_ppt"][slots] * 1e-12).astype(np.int64)
        expected = np.where(sent, columns["correction_ns"][slots] + turned, hosts.correction_ns)
        moved = (solution.correction_ns - expected).astype(np.float64)
        jump, jumped = unexplained_jumps(
            columns["jump_ns"][slots], moved, hosts.bound_ns, solution.bound_ns, placed & hosts.known
        )
        # A pause that nobody noticed explains it, which the host sees soon by corrections whose bounds have no jump in
        # them. But a fleet whose anchor it is must not follow it meanwhile.
        if hosts.verified is not None:
            paused = ~hosts.verified & ~rows["anchored"]
            jump[paused], jumped = columns["jump_ns"][slots[paused]], jumped & ~paused
        columns["jump_ns"][slots] = jump
        # Edges that still rest on pre-step samples widen the bound, but do not make the host a suspect.
        settled = now_s - columns["stepped_s"][slots] > _SETTLING_S
        columns["jumped_s"][slots[(jumped | (jump != 0)) & settled]] = now_s
        return jumped

    def assess(
        self, rows: Records, numbers: NDArray[np.uint16], edges: Edges, solution: Solution, now_s: float
    ) -> Bools:
        """Enters the residuals of all edges and the suspicions of all hosts; returns which edges are outliers.

        numbers : of each edge among those of the host that reports it.
        """
        n = len(rows)
        columns, slots = self._columns.at, rows["slot"]
        self._doubted.watch(slots, edges, solution, now_s)
        limit_ns = outlier_limits_ns(n, edges.i, edges.j, solution.residual_ns, edges.bound_ns)
        outlier = np.abs(solution.residual_ns) > limit_ns
        block = np.zeros(len(outlier), RESIDUAL_DTYPE)
        block["edge"] = numbers
        block["residual_ns"] = np.clip(np.rint(solution.residual_ns), -_I4, _I4)
        block["fits"] = ~outlier
        self._columns.residuals = block.tobytes()
        counts = np.bincount(edges.i, minlength=n) * RESIDUAL.size
        ends = np.cumsum(counts)
        columns["residuals"] = 0
        columns["residuals"][slots] = np.stack([ends - counts, ends], axis=1)
        bad = np.bincount(edges.i[outlier], minlength=n) + np.bincount(edges.j[outlier], minlength=n)
        columns["outliers"][slots] = bad
        columns["outlying_s"][slots[faulty_hosts(n, edges.i, edges.j, solution.residual_ns, limit_ns)]] = (
            now_s
        )
        for reason, which in ((CONTRADICTING, solution.falsetickers), (DISPUTED, solution.disputed)):
            columns["utc_s"][slots[which]] = now_s
            columns["utc"][slots[which]] = reason
        suspect = np.where(np.isinf(columns["doubt_ns"]), UNKNOWN, 0)
        suspect = np.where(now_s - columns["utc_s"] <= HOLD_S, columns["utc"], suspect)
        suspect = np.where(now_s - columns["outlying_s"] <= HOLD_S, OUTLYING, suspect)
        columns["suspect"] = np.where(now_s - columns["jumped_s"] <= HOLD_S, JUMPED, suspect)
        return outlier
