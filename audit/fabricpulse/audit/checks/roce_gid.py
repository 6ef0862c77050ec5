"""RoCE v2 GID."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="roce-gid",
    category="back-end",
    severity="error",
    title="RoCE v2 GID",
    proves="NCCL takes a GID of RoCE v2 with an address that is routed, on every RoCE port.",
    how="The GID table of each port, and NCCL's own choice (`ncclIbGetGidIndex`).",
    fix="Give the NIC its IPv4 address; set NCCL_IB_ROCE_VERSION_NUM=2 or the right NCCL_IB_GID_INDEX.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    roce = [port for port in host.ports if port.link_layer == "Ethernet"]
    if not roce:
        yield not_applicable("no RoCE port")
    for port in roce:
        table, size = host.gid_table(port)
        if not size:
            yield unknown("its GID table cannot be read", port.subject, rdma_device=port.device.name)
            continue
        if not table:
            yield failed("no GID", port.subject, rdma_device=port.device.name)
            continue
        index = host.gid_index(port)
        gid = table.get(-1 if index is None else index)
        if gid is None:
            yield failed("the entry that NCCL takes is empty", port.subject, index=host.nccl.gid_index)
        elif gid.roce_version == 1:
            yield failed(f"NCCL takes index {index}, RoCE v1", port.subject, gid=gid.text, type=gid.kind)
        elif not gid.kind:
            yield unknown(f"NCCL takes index {index}, whose type cannot be read", port.subject, gid=gid.text)
        elif not gid.is_valid:
            yield failed(f"NCCL takes index {index}, a link-local address", port.subject, gid=gid.text)
        else:
            yield passed(f"index {index}, {gid.kind}", port.subject)
