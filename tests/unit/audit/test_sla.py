"""Proving new hosts against a profile: what is pinned must be seen, and paths keep its limits."""

import itertools
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.audit.compare.profile import PathLimits, Profile
from fabricpulse.audit.compare.sla import limit_findings, unproven
from fabricpulse.audit.fleet import fleet_audit
from fabricpulse.audit.fleet.plan import FleetOptions
from fabricpulse.audit.host.attributes import ATTRIBUTES
from fabricpulse.audit.model import Measurement, MeasurementKind, Run, Value
from fabricpulse.audit.pair_tests.transfer_tests import BUSY, Transfers
from fabricpulse.audit.storage import encode
from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_options import ClientOptions

HOSTS = ["n0", "n1", "n2", "n3"]
LIMITS = PathLimits(least_gbps=90, most_loss=2e-3, most_delay_us=40)
SENT = 2000


def measured(bad: str = "", kind: MeasurementKind = "bandwidth", value: float = 0.0) -> list[Measurement]:
    """All pairs of four hosts within the limits, but one kind of what this host sends."""
    good: dict[MeasurementKind, float] = {"bandwidth": 95e9, "loss": 0.0, "owd": 2e-5}
    return [
        Measurement(k, "r", a, "e", b, "e", value if (a, k) == (bad, kind) else usual, True, 1, 1e-6)
        for a, b in itertools.permutations(HOSTS, 2)
        for k, usual in good.items()
    ]


def test_a_host_beyond_a_limit_is_named_whatever_others_reach() -> None:
    """By the direction of its NIC; a fleet that is slow alike misses it, too."""
    assert limit_findings(LIMITS, HOSTS, measured(), SENT) == []
    cases: list[tuple[MeasurementKind, float]] = [("bandwidth", 80e9), ("loss", 0.01), ("owd", 1e-4)]
    for kind, value in cases:
        [found] = limit_findings(LIMITS, HOSTS, measured("n2", kind, value), SENT)
        assert (found.check, found.host, found.subject, found.severity) == ("sla-path", "n2", "e", "error")
        assert kind in found.summary
    slow = [m for bad in HOSTS for m in measured(bad, "bandwidth", 5e10) if m.source_host == bad]
    reported = limit_findings(LIMITS, HOSTS, slow, SENT)
    assert {host for f in reported for host in f.suspects or (f.host,)} == set(HOSTS)


def test_what_was_not_measured_is_not_proven() -> None:
    """No transfer, a busy host, a clock whose bound is wider than the limit: unknown, never kept."""
    found = limit_findings(LIMITS, HOSTS, [], SENT)
    assert {(f.check, f.host) for f in found} == {("profile-unproven", host) for host in HOSTS}
    assert len(found) == 12
    busy = [Measurement("bandwidth", "r", "n0", "e", "n1", "e", 1e9, None, detail=BUSY)]
    only = PathLimits(least_gbps=90)
    assert [f.check for f in limit_findings(only, ["n0"], busy, SENT)] == ["profile-unproven"]
    wide = [Measurement("owd", "r", "n0", "e", "n1", "e", 3e-5, None, bound=2e-5)]
    assert [f.check for f in limit_findings(PathLimits(most_delay_us=40), ["n1"], wide, SENT)] == [
        "profile-unproven"
    ]
    assert limit_findings(PathLimits(), HOSTS, [], SENT) == []
    # One of 2,000 lost is chance, and 100 without loss do not show that one of 500 is the most.
    for lost, sent in ((1 / 1000, 1000), (0.0, 100)):
        one = [Measurement("loss", "r", "n0", "e", "n1", "e", lost, True)]
        few = limit_findings(PathLimits(most_loss=9e-4 if lost else 2e-3), ["n0"], one, sent)
        assert [f.check for f in few] == ["profile-unproven"]


NAMES = [attribute.name for attribute in ATTRIBUTES][:4]


@settings(deadline=None)
@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES), min_size=1), st.booleans())
def test_what_is_pinned_and_not_reported_is_named(
    reported: set[str], pinned: set[str], any_role: bool
) -> None:
    """Exactly the attributes that are missing; a host of no role of the profile is reported as such."""
    values = {"n0": [Value("kernel", "other", "", "x"), *(Value(name, "gpu", "", "1") for name in reported)]}
    role = "*" if any_role else "gpu"
    found = unproven(values, {role: dict.fromkeys(pinned, "1")})
    seen = reported | {"kernel"} if any_role else reported
    if not any_role and not reported:
        assert ["none of its roles" in f.summary for f in found] == [True]
    else:
        missing = pinned - seen
        assert len(found) == bool(missing)
        assert all(name in found[0].summary for name in missing)


def test_a_nic_that_the_profile_has_and_the_host_lacks_is_not_proven() -> None:
    """Of its own kind of host; the roles of another kind are no concern of it, and what pins nothing proves nothing."""
    values = {"n0": [Value("mtu", "GPU host: rail0", "eth0", "9000")]}
    pinned = {"mtu": "9000"}
    roles = {"GPU host: rail0": pinned, "GPU host: rail1": pinned, "host: rail1": pinned}
    [found] = unproven(values, roles)
    assert (found.host, "GPU host: rail1" in found.summary) == ("n0", True)
    assert unproven(values, {"GPU host: rail0": pinned}) == []
    assert [f.check for f in unproven(values, {"*": {}})] == ["profile-unproven"]


def test_a_profile_that_allows_no_value_is_refused() -> None:
    """Every host would fail it."""
    with pytest.raises(ValueError, match="allows no value"):
        Profile({"*": {"mtu": []}}).validate()


@pytest.mark.parametrize(
    ("before", "now", "judged_by"), [(100, 20_000, 100), (20_000, 2000, 2000), (0, 2000, 0)]
)
def test_a_resumed_run_proves_by_what_was_sent(before: int, now: int, judged_by: int, tmp_path: Path) -> None:
    """And not by what it was asked for: of a run that does not say, by nothing. Its age is that of the first."""
    start = time.time() - 3600
    first = Run(
        "r", start + 60, 0, ("n0",), (), (), measurements=tuple(measured()), datagrams=before, oldest_at=start
    )
    (tmp_path / "run.json").write_bytes(encode(first))
    options = FleetOptions(
        None,
        None,
        "n0",
        "",
        ClientOptions(),
        None,
        1,
        None,
        False,
        False,
        None,
        transfers=Transfers(datagrams=now),
        resume=tmp_path / "run.json",
    )
    run = fleet_audit._Run(options, None, ("n0",), lambda _run: None).judged(None)
    assert (run.datagrams, run.oldest_at) == (judged_by, start)
    old = msgspec.structs.replace(first, oldest_at=start - fleet_audit.MOST_RESUME_S)
    (tmp_path / "run.json").write_bytes(encode(old))
    with pytest.raises(UserError, match="old"):
        fleet_audit._Run(options, None, ("n0",), lambda _run: None)
