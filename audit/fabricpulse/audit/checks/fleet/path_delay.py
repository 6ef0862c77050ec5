"""One-way delay of pairs."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-delay",
    category="back-end",
    severity="warning",
    title="One-way delay of pairs",
    proves="The smallest one-way delay of each way is like that of others: within a leaf, or between.",
    how=(
        "Fleet time in the datagrams of `audit run --transfers`; more than 1.5 times the lower quartile and "
        "50 µs above, with the bounds of the clocks in its favour. Not judged without fleet time."
    ),
    fix=(
        "Follow the path hop by hop: a detour, a queue that never empties, or interrupts of the NIC named "
        "that are held back (`ethtool -c`)."
    ),
)
