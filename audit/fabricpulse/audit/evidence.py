"""What findings say in words that programs read again: those that write them and those that compare runs share it."""

from collections.abc import Mapping

from fabricpulse.audit.model import MeasurementKind

# Kinds of tests in the reason of `path-untested`, and which side of a NIC they are of.
KIND_NAMES: Mapping[MeasurementKind, str] = {
    "connectivity": "connectivity",
    "mtu": "MTU",
    "loss": "loss",
    "bandwidth": "bandwidth",
    "duplex": "both directions at once",
    "rdma": "RDMA writes",
    "owd": "one-way delay",
}
SIDES = {(True, False): " that it sends", (False, True): " that it is sent", (True, True): ""}


def kinds_named(reason: str) -> tuple[MeasurementKind, ...]:
    """The kinds of tests that a reason of `path-untested` names, () for one of an agent."""
    parts = [part.partition(": ")[0] for part in reason.split("; ")]
    names = {name for part in parts for name in part.split(", ")}
    return tuple(
        kind for kind, name in KIND_NAMES.items() if names & {name + side for side in SIDES.values()}
    )


def way_of(host: str) -> str:
    """Key of a finding that names many hosts: the way of this one that failed, source > target."""
    return f"way of {host}"[:128]
