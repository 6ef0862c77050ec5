"""What flows have lost, by epoch and number at their host."""

import numpy as np

from fabricpulse.diagnosis.loss_log import LOSS_DTYPE, LossLog


def add(log: LossLog, at_s: float, epoch: int, *flows: int) -> None:
    """One report: each flow has lost one packet of three."""
    ones = np.ones(len(flows), np.uint32)
    log.add(at_s, epoch, np.array(flows), 3 * ones, ones)


def told(log: LossLog) -> list[tuple[float, int, int]]:
    """Moment, epoch and flow of each loss that counts."""
    return [tuple(row) for row in log.losses[["at_s", "epoch", "flow"]].tolist()]


def test_the_oldest_leave() -> None:
    """What is older than is kept, and what is more."""
    log = LossLog(100.0, most=5000)
    for second in range(300):
        add(log, second, 1, *range(10))
        log.forget(second)
        assert len(log) == 10 * min(second + 1, 101)
    assert told(log)[0] == (199, 1, 0)
    for second in range(300, 310):
        add(log, second, 1, *range(1000))
        assert len(log) <= 5000
    assert [at_s for at_s, _, _ in told(log)] == [second for second in range(305, 310) for _ in range(1000)]
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
    assert told(log) == [(1.0, 3, 5), (1.0, 9, 0), (1.0, 9, 1), (2.0, 3, 7)]
    add(log, 3.0, 1, 1)  # of an epoch that is over
    log.forget(4.0)
    assert (3.0, 1, 1) in told(log)


def test_what_has_been_mended_counts_no_more() -> None:
    """A flow that lost each second and has not for some counts no more; one that loses now and then does."""
    log = LossLog(100.0)
    for second in range(5):
        add(log, second, 1, 4, *([8] if second in (0, 4) else []))
    log.drop_mended(8.0)
    assert len(log.losses) == 7
    log.drop_mended(14.0)
    assert told(log) == [(0.0, 1, 8), (4.0, 1, 8)]
    assert len(log.history) == 7
    add(log, 15.0, 1, 4)
    log.drop_mended(15.0)
    assert (15.0, 1, 4) in told(log)
