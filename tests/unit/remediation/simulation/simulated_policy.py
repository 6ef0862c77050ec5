"""The policy of the simulated fleet, and what it allows, written down once more."""

HOSTS, NICS, LEAF_HOSTS = 12, 4, 6
TICK_S = 2.0
HOLD_S = 60.0
POLICY = f"""
rules: [{{alert: FabricNicFlapping, mode: auto}}]
hold: {{initial_s: {HOLD_S}, jitter: 0, sticky_count: 4}}
alertmanagers: [http://a, http://b]
alertmanager_poll_s: 10
guards: {{max_in_flight: 1}}
"""
# What the policy allows, by its defaults for the most part, written down once more.
AGENT_TIMEOUT_S, REVALIDATE_S = 15.0, 60.0
IN_FLIGHT, A_MINUTE, BREAKER_HOSTS, BREAKER_WINDOW_S, JOB_NICS = 1, 20, 3, 300.0, 2
TOGETHER_HOSTS, TOGETHER_S = 4, 60.0


def job_of(host: str) -> str:
    """Two jobs, each on every second host."""
    return f"job{int(host[1:]) % 2}"
