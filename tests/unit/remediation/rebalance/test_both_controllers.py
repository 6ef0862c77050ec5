"""The plugins' path selectors and the receiver on the same lanes, which learns and orders late: they do not fight."""

from statistics import mean

import pytest
from tests.bench.remediation.selector import DELAYS_S, Play
from tests.fixtures.native.programs import native


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", DELAYS_S)
@pytest.mark.parametrize("spread", [False, True], ids=["collided", "spread"])
def test_no_lane_is_moved_to_and_fro(delay_s, spread):
    """In the second half of five minutes no lane is moved by the receiver and then by its plugin more than once, and
    what the rings carry is no less than in the first half."""
    play = Play(native("plugin_path_selector"), 7, controller=True, spread=spread, delay_s=delay_s)
    play.run(300)
    assert play.fights(150) == 0
    assert mean(play.shares[150:]) >= 0.97 * mean(play.shares[:150])
