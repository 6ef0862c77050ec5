"""Errors on the wire."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

FEW = 100

CHECK = Check(
    id="link-errors",
    category="back-end",
    severity="warning",
    title="Errors on the wire",
    proves="The links of the back end lose no packets to bit errors.",
    how=(
        "rx_crc_errors of /sys/class/net, symbol_error and port_rcv_errors of InfiniBand ports, "
        "rx_pcs_symbol_err_phy of the driver's statistics."
    ),
    fix="Clean or change the cable or module, then clear the counters and look again.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    if not host.backend and not host.ports:
        yield not_applicable("no back-end NIC")
    for netdev in host.backend:
        counts = {"rx_crc_errors": host.number(f"/sys/class/net/{netdev.name}/statistics/rx_crc_errors")}
        counts["rx_pcs_symbol_err_phy"] = (host.statistics(netdev.name) or {}).get("rx_pcs_symbol_err_phy")
        yield evaluate(netdev.name, counts)
    for port in host.ports:
        if port.link_layer == "InfiniBand":
            base = f"{port.device.path}/ports/{port.number}/counters"
            yield evaluate(
                port.subject,
                {name: host.number(Path(f"{base}/{name}")) for name in ("symbol_error", "port_rcv_errors")},
            )


def evaluate(subject: str, counts: Mapping[str, int | None]) -> Outcome:
    """Fails above FEW: a link that was plugged in counts some while it trains."""
    known = {name: count for name, count in counts.items() if count is not None}
    wrong = {name: count for name, count in known.items() if count > FEW}
    if wrong:
        return failed(", ".join(f"{name} {count}" for name, count in wrong.items()), subject, **wrong)
    return passed("none", subject) if known else unknown("no counter can be read", subject)
