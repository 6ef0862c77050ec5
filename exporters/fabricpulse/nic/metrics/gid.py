"""Metrics of GID tables and of the index that NCCL would use."""

from fabricpulse.nic.metrics.declare import counter, gauge

GID_ENTRIES = gauge(
    "gid_entries",
    "GIDs in the table that are not zero, by type (ports/N/gids, gid_attrs/types).",
    ("device", "port", "type"),
)
GID_INFO = gauge(
    "gid_info",
    "Always 1; a GID that is not zero: index, GID, type, netdev (gids/I, gid_attrs/types/I, gid_attrs/ndevs/I).",
    ("device", "port", "index", "gid", "gid_type", "netdev"),
)
GID_CHANGES = counter(
    "gid_table_changes",
    "GID table entries that appeared, vanished or changed, seen since the exporter started.",
)
GID_MOVES = counter(
    "gid_index_moves",
    "Times the GID that NCCL would use moved to another index, seen since the exporter started; NCCL keeps the index "
    "of job start and fails after a move.",
)
ROCE_V2_INDEX = gauge(
    "roce_v2_gid_index", "Lowest index of a RoCE v2 GID that is IPv4-mapped, or else of any RoCE v2 GID."
)
NCCL_INDEX = gauge(
    "nccl_gid_index",
    "GID index that NCCL would use on this port: NCCL_IB_GID_INDEX, or its search by address family, range and RoCE "
    "version; absent if none fits.",
)
NCCL_CONSISTENT = gauge(
    "nccl_gid_index_consistent",
    "1 if all active RoCE ports of this host have a GID for NCCL and at the same index, else 0; absent without RoCE.",
    (),
)
