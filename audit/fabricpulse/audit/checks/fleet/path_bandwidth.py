"""Bandwidth of pairs."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-bandwidth",
    category="back-end",
    severity="error",
    title="Bandwidth of pairs",
    proves="TCP between the NICs of each network reaches 80 % of `--rate`, or of what most others reach.",
    how=(
        "Paced TCP streams, each way of each tested pair, one transfer a NIC at a time (`audit run "
        "--transfers`); slow ways are tested again, with other partners where that decides whose fault it is."
    ),
    fix=(
        "Compare speed, PCIe width, NUMA node and pause frames of the NIC named with those of its peers; a "
        "slow path between two good NICs is the fabric's."
    ),
)
