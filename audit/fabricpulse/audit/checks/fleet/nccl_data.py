"""Data of the NCCL ring."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="nccl-data",
    category="back-end",
    severity="error",
    title="Data of the NCCL ring",
    proves="Every byte of a verified all-reduce over all hosts is right.",
    how="`audit run --nccl` computes the result on each host and compares it.",
    fix=(
        "Something changes packets and fixes their checksum: a switch's memory, a NIC, a host's memory. Halve "
        "the list of hosts (`--hosts`) until the ring is right; read memory errors of the host that is left."
    ),
)
