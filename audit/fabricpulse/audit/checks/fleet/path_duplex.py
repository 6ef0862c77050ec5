"""Both directions at once."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-duplex",
    category="back-end",
    severity="error",
    title="Both directions at once",
    proves=(
        "TCP in both directions of a pair at once reaches 80 % of what the two reach one after the other, or "
        "of the share that most others reach."
    ),
    how=(
        "Paced TCP streams both ways at once between the NICs of each tested pair, after each way alone "
        "(`audit run --transfers`, unless `--no-duplex`); pairs that are slow are tested again."
    ),
    fix=(
        "Look at the duplex of the NIC named (`ethtool`), at its PCIe width, speed and payload size, and at "
        "what shares its PCIe switch; pause frames that the NIC sends show a host that cannot take in what "
        "comes."
    ),
)
