"""What an agent takes over and reports of the desired state, whoever has spoken to it."""

import time

import msgspec
from tests.unit.remediation.node.test_node import agent_of

from fabricpulse.remediation.node.held import reported
from fabricpulse.remediation.protocol import (
    MAX_HELD_GENERATION,
    MAX_NICS,
    DesiredNic,
    DesiredState,
    Report,
)
from fabricpulse.remediation.receiver.web.report_decoding import decode_report


def test_a_receiver_that_is_none_leaves_no_agent_deaf(tmp_path, monkeypatch):
    """It named more NICs than a report may have, so that the next receiver refused all reports of the host; and a
    generation that is not reported and that none supersedes, so that the NIC stayed as it was for ever."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(
        "fabricpulse.remediation.node.local_host.kernel_has", lambda device: device == "rail9"
    )
    now = int(time.time() * 1000)
    with agent_of(tmp_path) as agent:
        for turn in range(3):
            made_up = [DesiredNic(f"x{turn}-{n}", "avoid", now, f"op-{turn}-{n}") for n in range(MAX_NICS)]
            assert agent.intake.accept(DesiredState("h0", 1, str(turn), made_up, 4e9))
        far = DesiredNic("rail9", "avoid", MAX_HELD_GENERATION + 1, "op-far")
        assert agent.intake.accept(DesiredState("h0", 1, "far", [far], 4e9))
        assert "rail9" not in agent.intake.desired
        real = DesiredNic("rail9", "avoid", now + 1, "op-real")
        assert agent.intake.accept(DesiredState("h0", 1, "real", [real], 4e9))
        held = reported(agent.intake.desired, agent.host.has_not)
        assert len(held) == MAX_NICS < len(agent.intake.desired) < 2 * MAX_NICS
        assert held["rail9"].generation == now + 1
        decode_report(msgspec.json.encode(Report(held=held)))
    with agent_of(tmp_path) as agent:
        assert reported(agent.intake.desired, agent.host.has_not) == held


def test_generations_of_a_clock_that_was_years_ahead_are_obeyed(tmp_path, monkeypatch):
    """They are reported, and the next receiver goes on from there, also where this host's clock is right by now."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    ahead = int(time.time() * 1000) + 9 * 365 * 86_400_000
    with agent_of(tmp_path) as agent, monkeypatch.context() as earlier:
        assert agent.intake.accept(
            DesiredState("h0", 1, "1", [DesiredNic("rail0", "avoid", ahead, "op-1")], 4e9)
        )
        earlier.setattr(time, "time", lambda: 1.7e9)
        following = DesiredNic("rail0", "in_service", ahead + 1, "op-2")
        assert agent.intake.accept(DesiredState("h0", 1, "2", [following], 4e9))
        assert agent.intake.desired["rail0"] == following
