"""ECN on RoCE NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="ecn-enabled",
    category="back-end",
    severity="warning",
    title="ECN on RoCE NICs",
    proves="RoCE NICs answer congestion marks and slow down for them, for the priorities that have PFC.",
    how=(
        "ecn/roce_np/enable and ecn/roce_rp/enable of /sys/class/net, which NVIDIA's OFED has; without "
        "it: not applicable."
    ),
    fix=(
        "`echo 1 >/sys/class/net/DEVICE/ecn/roce_np/enable/3`, the same for roce_rp, and marks (WRED/ECN) "
        "on the switches."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    judged = False
    for netdev in host.backend:
        priorities = host.names(f"/sys/class/net/{netdev.name}/ecn/roce_np/enable")
        if not priorities:
            continue
        judged = True
        state = host.dcb(netdev.name)
        lossless = [p for p, on in enumerate(state.pfc_enabled or ()) if on] if state else []
        wanted = [str(p) for p in lossless] or priorities
        states = {
            f"{side} {priority}": host.number(f"/sys/class/net/{netdev.name}/ecn/{side}/enable/{priority}")
            for side in ("roce_np", "roce_rp")
            for priority in wanted
        }
        off = [name for name, on in states.items() if on == 0]
        # Without PFC any priority may be the one that carries RoCE: one that is on is enough.
        is_off = off if lossless else (off if len(off) == 2 * len(wanted) else [])
        if is_off:
            yield failed(f"off: {', '.join(is_off[:8])}", netdev.name)
        elif None in states.values() and (lossless or not any(states.values())):
            unread = ", ".join(name for name, on in states.items() if on is None)
            yield unknown(f"cannot be read: {unread}", netdev.name)
        else:
            yield passed("on", netdev.name)
    if not judged:
        yield not_applicable("the driver does not show it in sysfs")
