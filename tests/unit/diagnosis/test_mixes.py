"""Mixes of faults in which once something was named that is no fault."""

import pytest
from tests.bench.map.mixes import played

pytestmark = pytest.mark.simulation

SEEDS = [
    # Two of three leaves die at once: a cable that is dead already and another one look like one that both flows cross.
    21004,
    # A leaf flaps while its hosts are restarted: some losses of its last burst, half a minute later.
    pytest.param(31015, marks=pytest.mark.slow),
    # A leaf dies while another one flaps: what the latter explains nearly tells nothing of the cables of the former.
    pytest.param(31029, marks=pytest.mark.slow),
    # Beside a dead leaf a dead cable on a path that nobody has traced is not named; its flows are no pairs for that.
    pytest.param(31074, marks=pytest.mark.slow),
    # A NIC that sends nothing is restarted with its host: for one round of reports it seems to receive nothing, either.
    pytest.param(31089, marks=pytest.mark.slow),
    # Of a dead spine on paths that nobody has traced one leaf has used more than others, by chance.
    pytest.param(31104, marks=pytest.mark.slow),
    # Of a pair of a host that cannot report its paths some flows take a dead link that others are known to take.
    pytest.param(31117, marks=pytest.mark.slow),
    # For one round of reports now and then links of a dead spine explain what it loses better than it does.
    pytest.param(32026, marks=pytest.mark.slow),
    # A leaf that flaps is found beside its parts in its last second, on what they leave of its flows: they are its own.
    pytest.param(33010, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_but_the_faults_is_named(seed: int) -> None:
    """Nor what is said to be indistinguishable from none of them."""
    wrong, text = played(seed)
    assert not wrong, text
