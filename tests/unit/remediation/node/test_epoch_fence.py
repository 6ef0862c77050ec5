"""Which receivers an agent follows, and how long somebody who answers in the right one's place keeps that one out."""

import sqlite3
from pathlib import Path

import pytest

from fabricpulse.core.config import parse_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.remediation.node.agent import NodeAgent
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.epoch_fence import UNSIGNED_HOLD_S, EpochFence
from fabricpulse.remediation.node.journal import NodeJournal
from fabricpulse.remediation.protocol import DesiredNic, DesiredState
from fabricpulse.remediation.signing import make_key_pair

DAY = 86_400.0


class Host:
    """A host's clocks. The right receiver started ten days ago, so that any epoch since is above its own."""

    def __init__(self) -> None:
        self.now, self.up = 1_700_000_000.0, 50.0
        self.right = int(self.now - 10 * DAY)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds

    def fence(self, epoch: int = 0, *, signed: bool = False) -> EpochFence:
        return EpochFence(epoch, lambda: self.now, lambda: self.up, signed=signed)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.mark.parametrize("signed", [False, True])
def test_an_epoch_from_the_future_fences_nobody(host, signed):
    """The agent refused every receiver as "older" once one had a clock ahead of its own, also after a restart."""
    fence, now = host.fence(signed=signed), int(host.now)
    assert fence.admits(now)
    assert not fence.admits(now - 10)
    for ahead in (400 * DAY, DAY + 60) if signed else (400 * DAY, DAY - 60, 310):
        assert fence.admits(int(now + ahead))
        assert fence.admits(now + 1)
        assert not fence.admits(now)
        assert host.fence(int(now + ahead), signed=signed).admits(now)
    assert not host.fence(now + 30, signed=signed).admits(now)


@pytest.mark.parametrize("ahead", [-DAY, 0, 299, DAY])
def test_a_fake_that_leaves_fences_nobody_for_long(host, ahead):
    """Whatever epoch it named, and however the agent starts again meanwhile: with a fence for good, the right receiver
    was out until it started anew, or for a day."""
    fence = host.fence(host.right)
    assert fence.admits(int(host.now + ahead))
    for _ in range(3):
        host.passes(UNSIGNED_HOLD_S / 4)
        fence.admits(host.right)
    host.passes(UNSIGNED_HOLD_S / 4)
    assert fence.admits(host.right)
    assert fence.admits(host.right), "and it stays with it"
    again = host.fence(int(host.now + ahead))
    host.passes(UNSIGNED_HOLD_S)
    assert again.admits(host.right)


def test_an_earlier_leader_is_out_while_the_new_one_answers(host):
    """Of receivers that do not sign, too, for hours."""
    fence = host.fence()
    new = int(host.now)
    for _ in range(1000):
        assert fence.admits(new)
        host.passes(20)
        assert not fence.admits(host.right)


def test_a_receiver_that_signs_fences_for_good(host):
    """Nobody else could have said it."""
    fence = host.fence(signed=True)
    assert fence.admits(int(host.now))
    host.passes(30 * DAY)
    assert not fence.admits(host.right)
    assert not host.fence(fence.epoch, signed=True).admits(host.right)


@pytest.mark.parametrize("ahead", [310, DAY - 60])
def test_a_receiver_that_signs_fences_with_a_clock_that_is_ahead(host, ahead):
    """It leads: that its clock is wrong lets no earlier leader in."""
    fence, epoch = host.fence(signed=True), int(host.now + ahead)
    assert fence.admits(epoch)
    assert not fence.admits(epoch - 1)
    assert not host.fence(epoch, signed=True).admits(int(host.now))


def state(epoch: int, generation: int) -> DesiredState:
    nic = DesiredNic("rail0", "avoid", generation, f"op-{generation}")
    return DesiredState("h0", epoch, str(generation), [nic], 4e9)


def test_what_nobody_signed_does_not_fence_who_signs(tmp_path: Path):
    """A fake took over agents without keys; then the hosts get keys: the receiver that signs is obeyed at once, its
    own fence is kept, and an agent that loses its keys again does not forget it."""
    make_key_pair(tmp_path / "private.pem", tmp_path / "public.pem")
    journal = f"host: h0, journal: {tmp_path / 'node.db'}"
    keys = f"{{{journal}, receiver_keys: {tmp_path / 'public.pem'}}}"

    def accepted(text: str, *states: DesiredState) -> list[bool]:
        agent = NodeAgent(parse_config(text, NodeConfig, "test"), Lifetime())
        try:
            return [agent.intake.accept(each) for each in states]
        finally:
            agent.close()

    fake, right = 1_700_000_900, 1_700_000_000
    assert accepted(f"{{{journal}}}", state(fake, 5), state(right, 6)) == [True, False]
    assert accepted(keys, state(right, 7), state(right - 1, 8)) == [True, False]
    assert accepted(f"{{{journal}}}", state(fake, 9)) == [True]
    assert accepted(keys, state(right - 1, 10), state(right, 11)) == [False, True]


def test_the_journal_of_an_older_version_counts_as_unsigned(tmp_path: Path):
    """Who said what it has is not known."""
    with sqlite3.connect(tmp_path / "node.db") as old:
        old.execute("CREATE TABLE fence (epoch INTEGER NOT NULL)")
        old.execute("INSERT INTO fence VALUES (9)")
    for signed, epoch in ((True, 0), (False, 9)):
        journal = NodeJournal(tmp_path / "node.db", signed=signed)
        assert journal.epoch() == epoch
        journal.close()
