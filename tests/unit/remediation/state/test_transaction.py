"""Changes beside the state: seen by the transaction, undone as a whole, applied in place."""

import pytest

from fabricpulse.remediation.receiver.state.model import Phase, State, Target, TargetState
from fabricpulse.remediation.receiver.state.phases import (
    DESIRED,
    TRANSITIONS,
    IllegalTransitionError,
    next_phase,
)
from fabricpulse.remediation.receiver.state.transaction import Transaction


def target(device: str, generation: int = 1) -> TargetState:
    return TargetState(target=Target("h0", device), generation=generation)


def test_a_transaction_shows_its_changes_and_the_state_does_not():
    """Readers of the state see committed entries only."""
    state = State(targets={"h0/a": target("a"), "h0/b": target("b")}, epoch=1)
    transaction = Transaction(state)
    transaction.put_target(target("a", 2))
    transaction.put_target(target("c"))
    transaction.drop("targets", ["h0/b"])
    transaction.set(epoch=2)
    assert sorted(transaction.targets) == ["h0/a", "h0/c"]
    assert len(transaction.targets) == 2
    assert (transaction.targets["h0/a"].generation, transaction.targets.get("h0/b")) == (2, None)
    with pytest.raises(KeyError):
        transaction.targets["h0/b"]
    assert transaction.epoch == 2
    assert sorted(state.targets) == ["h0/a", "h0/b"]
    assert transaction.state.targets == dict(transaction.targets)
    applied = transaction.apply()
    assert applied.targets is state.targets
    assert (applied.epoch, sorted(applied.targets)) == (2, ["h0/a", "h0/c"])


def test_rollback_undoes_one_event_only():
    """Changes, removals, fields and journal lines of the failed event go; those before it stay."""
    transaction = Transaction(State(targets={"h0/a": target("a")}))
    transaction.put_target(target("a", 2))
    transaction.set(epoch=5)
    transaction.log("h0/a", "kept")
    mark = transaction.mark()
    transaction.put_target(target("a", 3))
    transaction.put_target(target("b"))
    transaction.drop("targets", ["h0/a"])
    transaction.set(epoch=6, recent=((1.0, "failover", "h0/a"),))
    transaction.log("h0/a", "undone")
    transaction.rollback(mark)
    assert transaction.targets["h0/a"].generation == 2
    assert "h0/b" not in transaction.targets
    assert (transaction.epoch, transaction.recent) == (5, ())
    assert [line.event for line in transaction.transitions] == ["kept"]
    assert transaction.changed("targets") == ({"h0/a": target("a", 2)}, [])
    assert transaction.fields == {"epoch": 5}


PHASES: tuple[Phase, ...] = ("in_service", "avoiding", "avoided", "restoring", "manual")


def test_every_phase_has_a_way_back_into_service():
    """No phase is a dead end: `in_service` is reachable from all of them."""
    for start in PHASES:
        reached = {start}
        while True:
            more = {
                after
                for (before, _), after in TRANSITIONS.items()
                if before in reached and _ != "adopt_in_service"
            }
            if more <= reached:
                break
            reached |= more
        assert "in_service" in reached, start
    assert DESIRED.keys() == set(PHASES)


def test_what_the_table_does_not_have_cannot_happen():
    """A trigger that the phase does not allow is a defect, and is raised as one."""
    assert next_phase("avoiding", "applied") == "avoided"
    for phase, trigger in (("avoided", "nic.avoid"), ("manual", "applied"), ("in_service", "nic.restore")):
        with pytest.raises(IllegalTransitionError, match=f"{trigger} in phase {phase}"):
            next_phase(phase, trigger)
