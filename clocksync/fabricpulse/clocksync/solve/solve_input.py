"""The reports of one round as input of the solve: the hosts at one moment, and the edges between them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph_solve import Edges, Solution
from fabricpulse.clocksync.solve.hosts import Hosts
from fabricpulse.clocksync.wire.limits import MAX_ROUND_S
from fabricpulse.clocksync.wire.report_table import Records

# A fit that is older, or newer than the moment of the solve, is of no use: seconds. The moment is that of most reports,
# which may have waited as long as their senders do for an answer, behind thousands of others after a restart.
_OLDEST_S, _NEWEST_S = 120.0, 5.0

# How fast UTC and a stamp clock part whose rate is not known yet: the worst oscillator.
_FREE_PPB = 100_000.0

Ints = NDArray[np.int64]


@dataclass
class Lines:
    """Of each host, as in wire.messages.Line."""

    ref_ns: Ints
    correction_ns: Ints
    rate_ppt: Ints

    def at(self, host_ns: Ints) -> Ints:
        """Corrections when the hosts' clocks show `host_ns`."""
        # In two parts: the product of some seconds in ns and a rate in 10^-12 does not fit 64 bits.
        whole, rest = np.divmod(host_ns - self.ref_ns, 10**6)
        return self.correction_ns + (whole * self.rate_ppt + rest * self.rate_ppt // 10**6) // 10**6


@dataclass
class RoundInput:
    """What the reports of one round say of their hosts, as arrays.

    A host's clock is its stamp clock. host_ns : what it showed when the report left, arrived_ns : about now, by when
    the report came in. known : it has a line. anchor_ns : UTC minus clock when the report left. verified, missed_ns :
    as in Hosts. moment : lines by which it is known which moment is meant, of the hosts in `placed`.
    """

    host_ns: Ints
    arrived_ns: Ints
    known: NDArray[np.bool_]
    verified: NDArray[np.bool_]
    line: Lines
    moment: Lines
    bound_ns: NDArray[np.float64]
    anchor_ns: NDArray[np.float64]
    anchor_bound_ns: NDArray[np.float64]
    unnoticed_ns: NDArray[np.float64]
    anchor_rate_ppb: NDArray[np.float64]
    anchor_unsure_ppb: NDArray[np.float64]
    placed: NDArray[np.bool_]
    missed_ns: NDArray[np.float64] | float = 0.0

    @classmethod
    def from_reports(
        cls,
        rows: Records,
        now_s: float,
        unnoticed_ns: float,
        anchor_rate_ppb: NDArray[np.float64],
        anchor_unsure_ppb: NDArray[np.float64],
    ) -> "RoundInput":
        """From `rows` at `now_s`. unnoticed_ns : what clocks may have done together unseen.
        anchor_rate_ppb, anchor_unsure_ppb : UTC's rate minus the clock's by each anchor, NaN while it is not known,
        and how far that may be off.
        """
        known, anchored = rows["known"].copy(), rows["anchored"]
        verified = known & ~rows["unverified"]
        # A line from before a pause that nobody noticed is of another moment.
        placed = verified if 2 * verified.sum() >= known.sum() else known
        fields = [rows[name] for name in ("ref_ns", "correction_ns", "rate_ppt")]
        line, moment = (Lines(*(field.copy() for field in fields)) for _ in range(2))
        return cls(
            rows["host_ns"].copy(),
            rows["host_ns"] + np.rint((now_s - rows["received_s"]) * 1e9).astype(np.int64),
            known,
            verified,
            line,
            moment,
            rows["bound_ns"].astype(np.float64),
            np.where(anchored, rows["anchor_ns"].astype(np.float64), np.nan),
            np.where(anchored, rows["anchor_bound_ns"].astype(np.float64), np.inf),
            np.where(rows["no_quorum"], 0.0, unnoticed_ns),
            anchor_rate_ppb,
            anchor_unsure_ppb,
            placed.copy(),
        )

    def fleet_ns(self) -> int | None:
        """Fleet time about now, by most of the hosts that have it; None while none does."""
        if not self.placed.any():
            return None
        shown = np.sort((self.arrived_ns + self.moment.at(self.arrived_ns))[self.placed])
        return int(shown[len(shown) // 2])

    def simultaneous(self) -> Ints:
        """What each host's clock shows at one moment, ns.

        A report says what the host's clock showed when it left; how long it took to get here is not known, and at 100
        ppm of difference 10 ms of it would cost 1 us. So the moment is one of fleet time, which every host with a line
        can name exactly; when the reports came in only says about which.
        """
        moment = self.fleet_ns()
        if moment is None:
            return self.arrived_ns
        fleet = self.arrived_ns + self.moment.at(self.arrived_ns)
        return np.where(self.placed, self.arrived_ns + (moment - fleet), self.arrived_ns)

    def place(self, solution: Solution, host_now: Ints) -> None:
        """Gives newcomers the lines that a first solve found for them, only to say which moment is meant."""
        new = ~self.placed & solution.reached
        self.moment.ref_ns[new] = host_now[new]
        self.moment.correction_ns[new] = solution.correction_ns[new]
        self.moment.rate_ppt[new] = np.rint(solution.rate_ppb[new] * 1000).astype(np.int64)
        self.placed |= new

    def hosts(self, host_now: Ints, drift_ppb: NDArray[np.float64] | float) -> Hosts:
        """What the hosts know of themselves when their clocks show `host_now`. drift_ppb : by which that ages."""
        elapsed_s = np.abs((host_now - self.line.ref_ns).astype(np.float64)) * 1e-9
        # An anchor reports UTC as of its report; since then its stamp clock has drifted away from it. While it is
        # unknown how fast, neither does the fleet, which runs at a wrong rate until the next round.
        since_s = (host_now - self.host_ns).astype(np.float64) * 1e-9
        rate_known = np.isfinite(self.anchor_rate_ppb)
        turned_ns = np.where(rate_known, self.anchor_rate_ppb * since_s, 0.0)
        # An anchor may be slewed: UTC's rate is known as far as what the anchor has said of UTC limits it.
        free_ns = np.where(
            rate_known, self.anchor_unsure_ppb * np.abs(since_s), _FREE_PPB * (np.abs(since_s) + MAX_ROUND_S)
        )
        return Hosts(
            np.where(self.known, self.line.at(host_now), 0),
            np.where(self.known, self.line.rate_ppt * 1e-3, 0.0),
            self.known,
            np.where(self.known, self.bound_ns + drift_ppb * elapsed_s, np.inf),
            self.anchor_ns + turned_ns,
            self.anchor_bound_ns + free_ns,
            self.unnoticed_ns,
            np.where(rate_known, self.anchor_rate_ppb, 0.0),
            self.missed_ns,
            verified=self.verified,
        )


def edge_input(
    records: NDArray[np.void],
    owner: NDArray[np.intp],
    peer: NDArray[np.intp],
    host_now: Ints,
    bias_ns: NDArray[np.float64] | float = 0.0,
) -> Edges:
    """What the solve takes of the `records`, each of the row `owner` about the row `peer`. bias_ns : as in Edges."""
    age_s = (host_now[owner] - records["t_ns"]) * 1e-9
    # What makes no sense stays in its place, so that residuals find theirs, and weighs nothing.
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
        np.where(age_s >= 0, age_s - records["last_after_us"] * 1e-6, -age_s),
        bias_ns,
    )
