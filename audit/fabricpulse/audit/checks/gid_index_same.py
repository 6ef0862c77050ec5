"""GID index on all NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome

CHECK = Check(
    id="gid-index-same",
    category="back-end",
    severity="error",
    title="GID index on all NICs",
    proves=(
        "NCCL takes the same GID index on all RoCE NICs of one model (board ID): NCCL_IB_GID_INDEX is one number for "
        "all."
    ),
    how="NCCL's choice by the GID table of each port.",
    fix=(
        "Give all NICs addresses in the same way (same order, same families); remove old addresses, then "
        "set the link down and up."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    values = {port.subject: host.gid_index(port) for port in host.ports if port.link_layer == "Ethernet"}
    yield from same_on_all(values, "GID index", "no RoCE port", host.boards)
