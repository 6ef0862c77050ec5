"""The life of a target as a transition table: every change of a phase is a row here, and no other can happen."""

from typing import Literal

from fabricpulse.remediation.receiver.state.model import Desired, Phase

# What changes a phase: a decision, the agent's report that every process shows the desired state, the failover limit,
# and an agent that holds a newer generation than the journal.
Trigger = Literal["nic.avoid", "nic.restore", "applied", "failover_limit", "adopt_avoid", "adopt_in_service"]

TRANSITIONS: dict[tuple[Phase, Trigger], Phase] = {
    ("in_service", "nic.avoid"): "avoiding",
    ("avoiding", "applied"): "avoided",
    ("avoided", "nic.restore"): "restoring",
    ("restoring", "applied"): "in_service",
    # undone before it was confirmed: refused, failed, not fetched, or released by an operator
    ("avoiding", "nic.restore"): "restoring",
    # an operator releases it again: no agent has confirmed its return
    ("restoring", "nic.restore"): "restoring",
    # it fires again while it returns
    ("restoring", "nic.avoid"): "avoiding",
    # failed over too often: only an operator releases it
    ("avoided", "failover_limit"): "manual",
    ("manual", "nic.restore"): "restoring",
    # set by a receiver whose journal is lost
    **{
        (phase, "adopt_avoid"): "avoided"
        for phase in ("in_service", "avoiding", "avoided", "restoring", "manual")
    },
    **{
        (phase, "adopt_in_service"): "in_service"
        for phase in ("in_service", "avoiding", "avoided", "restoring", "manual")
    },
}

DESIRED: dict[Phase, Desired] = {
    "in_service": "in_service",
    "avoiding": "avoid",
    "avoided": "avoid",
    "restoring": "in_service",
    "manual": "avoid",
}


class IllegalTransitionError(Exception):
    """A trigger that the phase does not allow: a defect, never an input."""


def next_phase(phase: Phase, trigger: Trigger) -> Phase:
    """The phase after `trigger`. Raises IllegalTransitionError."""
    try:
        return TRANSITIONS[phase, trigger]
    except KeyError as error:
        raise IllegalTransitionError(f"{trigger} in phase {phase}") from error
