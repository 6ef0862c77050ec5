"""What a solve shows of each host and edge: verdicts, suspicions, and how much wider a suspect's bound must be."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.members import Columns
from fabricpulse.clocksync.solve.graph_solve import Edges, Hosts, Solution
from fabricpulse.clocksync.solve.solve_input import Ints
from fabricpulse.clocksync.solve.suspicion import (
    CONTRADICTING,
    DISPUTED,
    HOLD_S,
    JUMPED,
    MISFITTING,
    misfits,
    misfitting,
    unexplained,
)
from fabricpulse.clocksync.wire.messages import VERDICT, VERDICT_DTYPE
from fabricpulse.clocksync.wire.report_table import Records

Bools = NDArray[np.bool_]

# After a step of a host's clock some edges still are of the old clock, each until the window of its fit is over.
_SETTLING_S = 10.0
_I4 = 2**31 - 1


class Judge:
    """Of the hosts of `columns`. stale_s : what a solve said holds for so long."""

    def __init__(self, columns: Columns, stale_s: float) -> None:
        self._columns = columns
        self._stale_s = stale_s

    def trusted(self, hosts: Hosts, slots: NDArray[np.intp]) -> Hosts:
        """`hosts`, whose anchors' UTC is that of before their stamps jumped, give or take the jump: it comes by these
        stamps, and a fleet would follow them.
        """
        jump = self._columns.at["jump_ns"][slots]
        if not (np.isfinite(hosts.anchor_ns) & (jump != 0)).any():
            return hosts
        return replace(
            hosts, anchor_ns=hosts.anchor_ns + jump, anchor_bound_ns=hosts.anchor_bound_ns + np.abs(jump)
        )

    def watch(self, rows: Records, hosts: Hosts, host_now: Ints, solution: Solution, now_s: float) -> Bools:
        """Looks for hosts whose stamps jumped; returns which did so now.

        Comes before the lines of this solve are entered.
        """
        columns, slots, placed = self._columns.at, rows["slot"], solution.placed
        stepped = placed & (rows["steps"] != columns["steps"][slots])
        columns["jump_ns"][slots[stepped]] = 0.0
        columns["jumped_s"][slots[stepped]] = -np.inf
        columns["stepped_s"][slots[stepped]] = now_s
        columns["steps"][slots[placed]] = rows["steps"][placed]
        # What it was told counts, as a reply may be lost, or refused. At a step only the host knows its line, which it
        # carried over the step; from then on the sum of what solves moved it by is how far it is from there.
        told = (now_s - columns["placed_s"][slots] <= self._stale_s) & ~stepped
        columns["placed_s"][slots[placed]] = now_s
        since_ns = np.where(told, host_now - columns["ref_ns"][slots], 0).astype(np.float64)
        turned = np.rint(since_ns * columns["rate_ppt"][slots] * 1e-12).astype(np.int64)
        expected = np.where(told, columns["correction_ns"][slots] + turned, hosts.correction_ns)
        moved = (solution.correction_ns - expected).astype(np.float64)
        jump, jumped = unexplained(
            columns["jump_ns"][slots], moved, hosts.bound_ns, solution.bound_ns, placed & hosts.known
        )
        columns["jump_ns"][slots] = jump
        # Solves by edges that still are of the clock before the step: a wider bound, but no reason to blame the host.
        settled = now_s - columns["stepped_s"][slots] > _SETTLING_S
        columns["jumped_s"][slots[(jumped | (jump != 0)) & settled]] = now_s
        return jumped

    def judge(
        self, rows: Records, numbers: NDArray[np.uint16], edges: Edges, solution: Solution, now_s: float
    ) -> Bools:
        """Enters the verdicts on all edges and the suspicions of all hosts; returns which edges do not fit.

        numbers : of each edge among those of the host that reports it.
        """
        n = len(rows)
        columns, slots = self._columns.at, rows["slot"]
        misfit = misfits(solution.residual_ns)
        block = np.zeros(len(misfit), VERDICT_DTYPE)
        block["edge"] = numbers
        block["residual_ns"] = np.clip(np.rint(solution.residual_ns), -_I4, _I4)
        block["fits"] = ~misfit
        self._columns.verdicts = block.tobytes()
        counts = np.bincount(edges.i, minlength=n) * VERDICT.size
        ends = np.cumsum(counts)
        columns["verdicts"] = 0
        columns["verdicts"][slots] = np.stack([ends - counts, ends], axis=1)
        bad = np.bincount(edges.i[misfit], minlength=n) + np.bincount(edges.j[misfit], minlength=n)
        columns["misfits"][slots] = bad
        columns["misfit_s"][slots[misfitting(n, edges.i, edges.j, misfit)]] = now_s
        for reason, which in ((CONTRADICTING, solution.contradicting), (DISPUTED, solution.disputed)):
            columns["utc_s"][slots[which]] = now_s
            columns["utc"][slots[which]] = reason
        suspect = np.where(now_s - columns["utc_s"] <= HOLD_S, columns["utc"], 0)
        suspect = np.where(now_s - columns["misfit_s"] <= HOLD_S, MISFITTING, suspect)
        columns["suspect"] = np.where(now_s - columns["jumped_s"] <= HOLD_S, JUMPED, suspect)
        return misfit
