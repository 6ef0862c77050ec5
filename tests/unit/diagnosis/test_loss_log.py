"""What flows have lost, by epoch and number at their host."""

import numpy as np
import pytest

from fabricpulse.diagnosis.evidence import loss_log
from fabricpulse.diagnosis.evidence.loss_log import LOSS_DTYPE, LossLog, LossTable


def add(log: LossLog, at_s: float, epoch: int, *flows: int) -> None:
    """One report: each flow has lost one packet of three."""
    ones = np.ones(len(flows), np.uint32)
    log.add(at_s, epoch, np.array(flows), 3 * ones, ones)


def reported(log: LossLog) -> list[tuple[float, int, int]]:
    """Moment, epoch and flow of each loss that counts."""
    return [tuple(row) for row in log.losses[["at_s", "epoch", "flow"]].tolist()]


def test_the_oldest_leave() -> None:
    """What is older than is kept, and what is more."""
    log = LossLog(100.0, most=5000)
    for second in range(300):
        add(log, second, 1, *range(10))
        log.forget(second)
        assert len(log) == 10 * min(second + 1, 101)
    assert reported(log)[0] == (199, 1, 0)
    for second in range(300, 310):
        add(log, second, 1, *range(1000))
        assert len(log) <= 5000
    assert [at_s for at_s, _, _ in reported(log)] == [
        second for second in range(305, 310) for _ in range(1000)
    ]
    log.forget(500)
    assert not len(log)
    assert LOSS_DTYPE.itemsize <= 28


def test_losses_go_with_their_flow() -> None:
    """Two changes between two rounds: a flow that has another number twice, one that is gone, another host's."""
    log = LossLog(100.0)
    add(log, 1.0, 1, 0, 1, 2)
    add(log, 1.0, 9, 0, 1)
    log.renumber(1, 2, np.array([-1, 0, 1]))
    log.renumber(2, 3, np.array([5, -1]))
    add(log, 2.0, 3, 7)
    log.forget(3.0)
    assert reported(log) == [(1.0, 3, 5), (1.0, 9, 0), (1.0, 9, 1), (2.0, 3, 7)]
    add(log, 3.0, 1, 1)  # of an epoch that is over
    log.forget(4.0)
    assert (3.0, 1, 1) in reported(log)


def test_what_has_ended_counts_no_more() -> None:
    """A flow that lost each second and has not for some counts no more; one that loses now and then does."""
    log = LossLog(100.0)
    for second in range(5):
        add(log, second, 1, 4, *([8] if second in (0, 4) else []))
    log.drop_recovered(8.0)
    assert len(log.losses) == 7
    log.drop_recovered(14.0)
    assert reported(log) == [(0.0, 1, 8), (4.0, 1, 8)]
    assert len(log.history) == 7
    add(log, 15.0, 1, 4)
    log.drop_recovered(15.0)
    assert (15.0, 1, 4) in reported(log)


def test_old_losses_of_many_flows_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row for each flow and ten seconds, so that a dead leaf takes little; all packets are there, all reports."""
    monkeypatch.setattr(loss_log, "_MANY_ROWS", 100)
    log, plain = LossLog(120.0), LossLog(120.0)
    for second in range(200):
        flows = [*range(8), *([20] if second % 3 == 0 else [])]
        for one in (log, plain):
            add(one, second + 0.5, 1, *flows)
            if second == 110:
                one.history["recovered"][one.history["flow"] == 5] = True
        log.forget(second + 0.9)
        assert (np.diff(log.history["at_s"]) >= 0).all()
        # Forty to fifty seconds one by one, and eight or nine rows of ten seconds.
        assert len(log) <= 8.4 * (51 + 9) + 10
    plain._begin = int(np.searchsorted(plain.history["at_s"], log.history["at_s"][0] // 10 * 10))
    for flow in (0, 5, 20):
        sums = [
            [one.history[field][one.history["flow"] == flow].sum(dtype=int) for field in ("sent", "lost")]
            for one in (log, plain)
        ]
        assert sums[0] == sums[1]
        (own,) = (log.history[log.history["flow"] == flow],)
        assert own["reports"].sum(dtype=int) == own["lost"].sum(dtype=int)
        assert (own["recovered"].any(), own["recovered"].all()) == (flow == 5, False)
    assert plain.history["at_s"][-1] == log.history["at_s"][-1] == 199.5


def test_a_repaired_flow_is_known_by_its_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lost each second, long ago; one row is left of that."""
    monkeypatch.setattr(loss_log, "_MANY_ROWS", 4)
    log = LossLog(120.0)
    for second in range(1, 9):
        add(log, second, 1, 4)
    log.forget(55.0)
    assert log.history[["at_s", "reports", "lost"]].tolist() == [(8.0, 8, 8)]
    add(log, 60.0, 1, 9)
    log.drop_recovered(60.0)
    assert reported(log) == [(60.0, 1, 9)]


@pytest.mark.parametrize(("last", "silent"), [(89, True), (40, True), (0, False)])
def test_what_dies_has_a_report_of_which_a_part_arrived(last: int, silent: bool) -> None:
    """Two reports without any packet, and the first one, of which a part was lost."""
    sent = np.array([90, 90, 90], np.float32)
    lost = np.array([last, 90, 90], np.float32) if silent else np.array([80, 40, 90], np.float32)
    more = np.ones(3, bool), np.ones(3, np.uint8), np.zeros(3, bool)
    table = LossTable(np.array([8.0, 9.0, 10.0]), np.full(3, 3, np.int32), sent, lost, *more)
    assert table.all_or_nothing(7.5, [3]) is silent
    assert not table.all_or_nothing(7.5, [4])
