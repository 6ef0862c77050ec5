"""When a delay is elevated: steps, ramps, noise, and a baseline that nothing drags along."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.mesh._probe_engine import LatencyHealth
from fabricpulse.mesh.config import Latency
from fabricpulse.mesh.snapshot import HealthState

US, MS = 1_000, 1_000_000
DEFAULTS = Latency()


def latency_health():
    """One with the default settings."""
    return LatencyHealth(round(DEFAULTS.ceiling_s * 1e9), DEFAULTS.factor, round(DEFAULTS.slack_s * 1e9))


def learned(floor_ns, noise_ns=0.0, seed=1, seconds=120):
    """One that has seen `floor_ns` for two minutes, and the source of its noise."""
    noise = random.Random(seed)
    health = latency_health()
    for _ in range(seconds):
        health.update(round(noise.gauss(floor_ns, noise_ns)))
    assert health.state == HealthState.UP
    return health, noise


def seconds_until_elevated(health, delays):
    """How many medians of `delays` it takes; None if none makes it elevated."""
    for second, delay in enumerate(delays, 1):
        health.update(round(delay))
        if health.state == HealthState.DOWN:
            return second
    return None


@pytest.mark.parametrize("floor_us", [1.4, 4, 15, 20, 50, 100])
@pytest.mark.parametrize("noise_ns", [0, 300, 1000])
def test_a_step_of_50_us_is_found_within_five_seconds(floor_us, noise_ns):
    health, noise = learned(floor_us * US, noise_ns)
    step = (noise.gauss((floor_us + 50) * US, noise_ns) for _ in range(100))
    assert seconds_until_elevated(health, step) <= 5


def test_three_per_cent_a_second_from_20_us_is_found_within_15_seconds():
    """The gray ramp: each median only a little above the one before, and the baseline must not follow."""
    for seed in range(50):
        health, noise = learned(20 * US, 300, seed)
        ramp = (noise.gauss(20 * US * 1.03**second, 300) for second in range(1, 200))
        assert seconds_until_elevated(health, ramp) <= 15


@given(st.floats(-4, 0), st.floats(1, 100))
@settings(max_examples=60, deadline=None)
def test_no_ramp_within_some_hours_is_slow_enough(exponent, floor_us):
    """From 100 ppm a second (43 % an hour) upwards: elevated before it has risen by two margins."""
    health, _ = learned(floor_us * US)
    slack = DEFAULTS.slack_s * 1e9
    margin = max((DEFAULTS.factor - 1) * floor_us * US, slack)
    highest = floor_us * US + margin  # of the baseline
    growth = 1 + 10**exponent
    delay = floor_us * US
    while health.state != HealthState.DOWN:
        delay *= growth
        health.update(round(delay))
        # The last medians before it is reported, and what hours let the lowest baseline follow.
        limit = highest + max((DEFAULTS.factor - 1) * highest, slack)
        assert delay < limit * growth**5 * 1.1 + US


@given(st.floats(1, 100), st.floats(0, 0.2), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_noise_alone_is_never_elevated(floor_us, noise, seed):
    """An hour of medians that stray by up to a fifth of the delay."""
    health, source = learned(floor_us * US, noise * floor_us * US, seed, seconds=60)
    steady = (source.gauss(floor_us * US, noise * floor_us * US) for _ in range(3600))
    assert seconds_until_elevated(health, steady) is None


def test_single_spikes_are_no_incident():
    """One median in three far above the limit: a scheduler, not a path."""
    health, _ = learned(10 * US, 100)
    spikes = (500 * US if second % 3 == 0 else 10 * US for second in range(600))
    assert seconds_until_elevated(health, spikes) is None


@given(st.integers(100, 5_000))
@settings(max_examples=20, deadline=None)
def test_a_long_incident_does_not_become_the_baseline(seconds):
    """It stays elevated for as long as it lasts, and is over within ten seconds of its end."""
    health, _ = learned(10 * US, 100)
    baseline = health.baseline_ns
    for second in range(seconds):
        health.update(500 * US)
        assert second < 5 or health.state == HealthState.DOWN
    assert health.baseline_ns == baseline
    for _ in range(10):
        health.update(10 * US)
    assert health.state == HealthState.UP


def test_a_better_path_is_the_new_baseline_at_once():
    """A route that became shorter: within seconds what was normal before is elevated."""
    health, _ = learned(60 * US)
    for _ in range(30):
        health.update(20 * US)
    assert abs(health.baseline_ns - 20 * US) < US
    assert seconds_until_elevated(health, [60 * US] * 10) is not None


def test_the_ceiling_holds_before_anything_is_learned():
    health = latency_health()
    health.update(5 * US)
    assert health.state == HealthState.UNKNOWN
    health.update(11 * MS)
    assert health.state == HealthState.DOWN


def test_a_baseline_below_zero():
    """From clocks that are off: the limit is the slack above it, never a multiple of it."""
    health = latency_health()
    for _ in range(12):
        health.update(-5 * US)
    assert (health.baseline_ns, health.limit_ns, health.state) == (-5 * US, 0, HealthState.UP)
