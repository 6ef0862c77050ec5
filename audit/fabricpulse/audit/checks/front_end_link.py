"""Link of the front-end NIC."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.routes import bond_members, default_routes
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed

CHECK = Check(
    id="front-end-link",
    category="front-end",
    severity="warning",
    title="Link of the front-end NIC",
    proves="The NICs of the default route have a full-duplex link of at least 10 Gb/s.",
    how=(
        "speed and duplex in /sys/class/net of the NICs of the default route, or of the members of their "
        "bond."
    ),
    fix=("Check the cable, the module and the switch port; half duplex means that only one end negotiates."),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    devices = sorted({device for device, _ in default_routes(host) or ()})
    members = [m for device in devices for m in bond_members(host, device) or [device]]
    judged = False
    for device in members:
        speed = host.netdev_text(device, "speed")
        duplex = host.netdev_text(device, "duplex")
        # Virtual links have no speed.
        if speed is None or not speed.lstrip("-").isdigit() or int(speed) <= 0:
            continue
        judged = True
        evidence = {"speed_mbps": speed, "duplex": duplex}
        if duplex == "half":
            yield failed("half duplex", device, **evidence)
        elif int(speed) < 10_000:
            yield failed(f"{speed} Mb/s", device, **evidence)
        else:
            yield passed(f"{int(speed) // 1000} Gb/s{', full duplex' if duplex == 'full' else ''}", device)
    if not judged:
        yield not_applicable("no front-end NIC that reports a speed")
