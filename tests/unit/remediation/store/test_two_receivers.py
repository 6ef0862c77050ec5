"""Two receivers with a journal each on one fleet, by mistake: they do not fight."""

from pathlib import Path
from typing import Literal

import pytest
from tests.unit.remediation.simulation.fabric_model import Fabric

from fabricpulse.core.config import parse_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.remediation.node.agent import NodeAgent
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.protocol import DesiredNic, DesiredState, LaneOrder

EPOCH = 1_700_000_000


def desired_state(epoch: int, desired: Literal["in_service", "avoid"], generation: int) -> DesiredState:
    nic = DesiredNic("rail0", desired, generation, f"h0/rail0#{generation}")
    order = LaneOrder(
        "1", "0" * 16, 0, "rail1", "lane.repath", None, generation, f"lane-{epoch}-{generation}"
    )
    return DesiredState("h0", epoch, str(generation), [nic], 4e9, [order])


def test_an_agent_obeys_the_one_that_started_last(tmp_path: Path) -> None:
    """Whatever generations and lane operations the other one has, and also after the agent has started again."""
    config = parse_config(f"{{host: h0, journal: {tmp_path / 'node.db'}}}", NodeConfig, "test")
    agent = NodeAgent(config, Lifetime())
    try:
        assert agent.intake.accept(desired_state(EPOCH, "avoid", 5))
        assert agent.intake.accept(desired_state(EPOCH + 60, "in_service", 9))
        for generation in (6, 20):
            assert not agent.intake.accept(desired_state(EPOCH, "avoid", generation))
        assert (agent.intake.desired["rail0"].desired, list(agent.intake.orders)) == (
            "in_service",
            [f"lane-{EPOCH + 60}-9"],
        )
    finally:
        agent.close()
    again = NodeAgent(config, Lifetime())
    try:
        assert not again.intake.accept(desired_state(EPOCH, "avoid", 30))
        assert again.intake.accept(desired_state(EPOCH + 60, "avoid", 31))
    finally:
        again.close()


@pytest.mark.parametrize("delay_s", [0.1, 10.0, 30.0])
def test_the_other_ones_plans_come_to_nothing(delay_s):
    """It sees what lanes do and plans, no agent carries it out: its plans are dropped, or, where it sees that lanes
    have moved and has no answer, ordered back in vain; the fleet is as with one."""
    fabric = Fabric(2, 2, 1, 4, delay_s)
    fabric.collide()
    other = Fabric(2, 2, 1, 4, delay_s)
    other.lanes = fabric.lanes
    other._carry_out = lambda host, order: None
    for _ in range(300):
        fabric.run(1)
        other.run(1)
    assert fabric.goodput() == fabric.best_goodput()
    assert [plan.phase for plan in fabric.plans()] == ["kept"]
    undone = {"rolling_back", "withdrawn", "rollback_failed"}
    assert {plan.phase for plan in other.plans()} <= {"dropped", "moving", *undone}
    assert other.operations == []
