"""What each guard's reason means, and what lets the action go on."""

WORDS = {
    "paused": "remediation is paused; `resume` ends that",
    "maintenance": "a maintenance window is open for it",
    "breaker": "more hosts at once than the breaker allows; `resume` resets it",
    "frozen": "too many agents do not report: the receiver may be cut off",
    "alertmanager_lost": "the Alertmanagers do not answer",
    "alerting_dead": "the alert that always fires is gone: the end of an alert says nothing",
    "agent_lost": "the agent of this host does not report; is `instance` the host's name as the agent has it?",
    "last_nic": "no other NIC of the host works",
    "capacity": "too few of the host's NICs would be left (min_nics_in_service, min_fraction_in_service)",
    "cooldown": "too soon after the last action (cooldown_s)",
    "attempts": "as many failovers of this NIC lately as max_attempts allows",
    "in_flight": "another action on this host is under way",
    "budget": "as many actions are under way as max_in_flight allows",
    "rate": "actions_per_minute, or operations_per_hour, is used up",
    "shared_cause": "alerts of several hosts share a rail, leaf or switch: that is the fault, not this NIC",
    "backoff": "the last try came to nothing; the next one has to wait (retry_initial_s)",
    "harmful": "jobs stalled after the last failovers of this rule; `resume` lets it act again",
    "not_acting": "the rule that took it out no longer acts; `release` puts it back",
    "manual": "it failed over too often; `release` puts it back",
    "unproven": "no probe has shown that it works",
    "unhelpful": "what was done last by this rule, or for this job, did not help; `resume` lets it act again",
    "workload": "its job has lost as many NICs as max_workload_nics or workload_fraction allow",
    "unconfirmed": "what is measured of its lanes does not confirm the alert",
    "not_measured": "the throughput of its lanes is not known: only sends of 32 KiB or more measure it",
    "no_gain": "nothing is to be won (min_gain)",
}


def guard(reason: str) -> str:
    """`guard paused: remediation is paused; ...`."""
    return f"guard {reason}: {WORDS[reason]}"
