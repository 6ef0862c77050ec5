"""Odd one out."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="odd-one-out",
    category="fleet",
    severity="error",
    title="Odd one out",
    proves="No host and no NIC has a value that differs from what more than half of its like have.",
    how=(
        "Attributes of hosts and NICs: what follows from hardware is compared among like machines, what is "
        "configured among hosts of a role and NICs of a network. In groups below three none is odd "
        "(`fleet-divided`)."
    ),
    fix=(
        "Bring the host named to the usual value, or pin both values in a profile where the difference is "
        "meant. The severity is the attribute's."
    ),
)
