"""Bandwidth of pairs by RDMA."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-rdma",
    category="back-end",
    severity="error",
    title="Bandwidth of pairs by RDMA",
    proves=(
        "RDMA writes between the NICs of each network come through, and reach 80 % of `--rate`, or of what "
        "most others reach."
    ),
    how=(
        "RDMA WRITEs over a reliable connected queue pair of RoCE v2, each way of each tested pair, after TCP "
        "(`audit run --transfers --rdma`); a write counts when the other NIC has acknowledged it, and fails "
        "after four tries without an answer. Slow ways are tested again, with other partners where that "
        "decides whose fault it is."
    ),
    fix=(
        "Where `path-bandwidth` finds nothing for the NIC or path named it is what RoCE alone needs: UDP port "
        "4791 let through, priority and flow control (PFC, ECN) equal on all hops, the MTU of the RDMA port. "
        "Where both find it fix that first."
    ),
)
