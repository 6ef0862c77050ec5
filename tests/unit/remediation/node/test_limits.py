"""What an agent does not do to its host, whatever a receiver says."""

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.limits import LocalLimits
from fabricpulse.remediation.protocol import DesiredNic

RAILS = [f"rail{i}" for i in range(4)]


def limits(text: str = "") -> LocalLimits:
    return LocalLimits(parse_config(text or "{}", NodeConfig, "test"))


def nic(device: str, desired: str = "avoid") -> DesiredNic:
    return DesiredNic(device, desired, 1, device)  # type: ignore[arg-type]


def test_a_fake_receiver_gets_half_of_the_nics_at_most():
    """It got three of four."""
    found = limits()
    desired = {"rail0": nic("rail0")}
    assert found.refusal(nic("rail1"), desired, RAILS, 0) == ""
    desired["rail1"] = nic("rail1")
    refusal = found.refusal(nic("rail2"), desired, RAILS, 0)
    assert refusal == "3 of 4 NICs would be out of service, 2 allowed on this host"
    desired["rail1"] = nic("rail1", "in_service")
    assert found.refusal(nic("rail2"), desired, RAILS, 0) == ""


def test_one_of_two_may_leave():
    """A host with two rails loses one, never both."""
    assert limits().refusal(nic("rail0"), {}, RAILS[:2], 0) == ""
    assert limits().refusal(nic("rail1"), {"rail0": nic("rail0")}, RAILS[:2], 0) != ""


def test_toggles_are_bounded_and_a_return_never_is():
    """29 toggles in 12 s were obeyed; now six failovers in ten minutes."""
    found = limits()
    for second in range(6):
        assert found.refusal(nic("rail0"), {}, RAILS, second) == ""
        found.took(second)
    assert found.refusal(nic("rail0"), {}, RAILS, 12) == "6 failovers on this host within 600 s"
    assert found.refusal(nic("rail0", "in_service"), {}, RAILS, 12) == ""
    assert found.refusal(nic("rail0"), {}, RAILS, 600.5) == ""


def test_only_listed_devices():
    """With `devices` nothing else is taken out, whatever the alert named."""
    found = limits("devices: [rail1]")
    assert found.refusal(nic("rail1"), {}, RAILS, 0) == ""
    assert "not in devices" in found.refusal(nic("rail0"), {}, RAILS, 0)
