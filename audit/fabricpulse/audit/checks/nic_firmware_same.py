"""Firmware of RDMA NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome, not_applicable

CHECK = Check(
    id="nic-firmware-same",
    category="back-end",
    severity="warning",
    title="Firmware of RDMA NICs",
    proves="RDMA NICs of one model (board ID) have the same firmware.",
    how="fw_ver and board_id of /sys/class/infiniband.",
    fix="Update the NIC named (`mlxfwmanager`, `fwupdmgr`) and reset it.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    boards: dict[str, dict[str, str | None]] = {}
    for port in host.ports:
        if port.device.firmware:
            boards.setdefault(port.device.board, {})[port.subject] = port.device.firmware
    if not boards:
        yield not_applicable("no RDMA device that reports its firmware")
    for board in sorted(boards):
        yield from same_on_all(boards[board], "firmware", "")
