"""A rate that is known badly, as after a first window under load: who is left alone with it says how far it may go."""

import numpy as np
import pytest

from fabricpulse.clocksync._edge_fit import Trains
from fabricpulse.clocksync._report_intake import REPLY_MAGIC
from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.edge.estimator import RATE_SIGMAS, EstimatorParameters
from fabricpulse.clocksync.edge.filter import EdgeFilter
from fabricpulse.clocksync.edge.fit import fit_edge
from fabricpulse.clocksync.sidecar.neighbours import consensus
from fabricpulse.clocksync.solve.graph_forms import graph_of
from fabricpulse.clocksync.solve.rate_doubt import rate_doubt_ppb
from fabricpulse.clocksync.wire.datagram import REPLY_DTYPE, unpack_reply
from fabricpulse.clocksync.wire.messages import Channel, Line, LineReply
from fabricpulse.core._siphash import siphash24
from fabricpulse.core.shm.clock_page import ClockStatus

S = 10**9
PARAMETERS = FleetClockParameters()


def waiting(rng: np.random.Generator, sign: int) -> Trains:
    """Half a second of trains of one direction between two equal clocks; each packet waits behind 50 us of others."""
    sent = np.sort(rng.integers(S, S + S // 2, 25))[:, None] + np.arange(3) * 20_000
    arrived = sent + 1_500 + np.rint(rng.exponential(50_000, sent.shape)).astype(np.int64)
    return Trains((sent if sign > 0 else arrived)[:, 0], sent, arrived, np.ones(sent.shape, np.bool_))


def test_a_first_window_says_how_far_its_rate_may_be_off() -> None:
    """By its line alone it was off by more in one of ten."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        fit = fit_edge(waiting(rng, 1), waiting(rng, -1), EstimatorParameters())
        assert fit is not None
        fit = EdgeFilter(EstimatorParameters()).update(fit)
        assert abs(fit.rate_ppb) <= RATE_SIGMAS * fit.rate_sigma_ppb


def test_it_adds_up_along_the_way_to_the_root() -> None:
    """By the best way; nothing where all edges know their rates well."""
    graph = graph_of(4, np.array([0, 1, 0]), np.array([1, 2, 2]))
    sigma, residual = np.array([100.0, 200.0, 1_000.0]), np.array([50.0, 0.0, 0.0])
    doubt = rate_doubt_ppb(graph, 0, sigma, residual, 250.0)
    assert doubt.tolist() == pytest.approx([0, 400, 1_600, np.inf], abs=0.01)
    assert rate_doubt_ppb(graph, 0, sigma / 100, residual / 100, 250.0).tolist() == [0, 0, 0, 0]


def test_it_goes_with_the_line_by_datagram() -> None:
    """In the upper half of what was the moment of the quorum, where older coordinators have 0."""
    channel = Channel(7, bytes(range(16)))
    head = np.zeros((), REPLY_DTYPE)
    head["magic"], head["channel"], head["sequence"], head["flags"] = REPLY_MAGIC, 7, 3, 1 | 1 << 5
    head["quorum_s"], head["drift_ppb"] = 1_800_000_000, 77_000
    body = head.tobytes() + b"h0"
    answer = unpack_reply(channel, 3, body + siphash24(channel.key, body).to_bytes(8, "little"), "")
    assert answer is not None
    assert answer[0].drift_ppb == 77_000
    assert answer[0].quorum is not None
    assert answer[0].quorum.moment_s == 1_800_000_000


def at(t_s: float) -> CrossTimestamp:
    """The clocks of a host that are right."""
    return CrossTimestamp(round(t_s * S), round(t_s * S))


def outside(clock: FleetClock, begin_s: int, end_s: int) -> list[int]:
    """Quarters of a second in which the truth was not within the bound, as readers see it."""
    wrong = []
    for quarter in range(4 * begin_s, 4 * end_s):
        now = at(quarter / 4)
        clock.tick(now)
        shown = clock.published(now).at(now.raw_ns)
        if abs(shown.fleet_ns - now.raw_ns) > shown.bound_ns:
            wrong.append(quarter)
    return wrong


@pytest.mark.parametrize("no_quorum", [False, True])
def test_holdover_begins_with_it(no_quorum: bool) -> None:
    """The rate is off by 20 ppm and nobody corrects it; a part that is not the fleet's does not know it better."""
    clock = FleetClock.start(PARAMETERS, at(0))
    clock.epoch_ns = 0
    clock.correct(at(1), Correction(S, 0, 20_000.0, 1_000, drift_ppb=20_000))
    if no_quorum:
        clock.correct(at(2), Correction(2 * S, 20_000, 20_000.0, 24_000, free=True, no_quorum=True))
    assert outside(clock, 2, 60) == []
    assert clock.page.status == ClockStatus.HOLDOVER
    # The next sidecar goes on with the same line.
    page = clock.published(at(60))
    assert outside(FleetClock.start(PARAMETERS, at(61), page), 61, 65) == []


def test_a_sidecar_that_starts_amid_a_slew() -> None:
    """It goes on with the line of the one before, which runs 500 ppm too fast until somebody corrects it."""
    clock = FleetClock.start(PARAMETERS, at(0))
    clock.epoch_ns = 0
    for second in (1, 2):
        clock.correct(at(second), Correction(second * S, -2_000_000 * (second == 1), 0.0, 1_000))
    page = clock.published(at(2.1))
    assert outside(FleetClock.start(PARAMETERS, at(4), page), 4, 9) == []


def test_neighbours_whose_rates_are_apart_say_so() -> None:
    """Two hosts that had other first windows: a round of averaging leaves half of what their rates are apart by."""
    rng = np.random.default_rng(2)
    fit = fit_edge(waiting(rng, 1), waiting(rng, -1), EstimatorParameters())
    assert fit is not None
    fit = fit._replace(offset_ns=0, rate_ppb=0.0, rate_sigma_ppb=5.0)
    now_ns = fit.t_last_ns
    lines = {"h1": LineReply("h1", now_ns, Line(now_ns, 0, 40_000_000, 1_000), True)}
    correction, _ = consensus("h0", Line(now_ns, 0, 0, 1_000), [("h1", fit)], lines, now_ns, 250.0)
    assert correction is not None
    apart_ppb = 40_000 - correction.rate_ppb
    assert apart_ppb >= 10_000
    assert correction.drift_ppb >= apart_ppb - 250
