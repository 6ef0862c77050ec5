"""Values that others report."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="value-missing",
    category="fleet",
    severity="warning",
    title="Values that others report",
    proves="Every host and NIC reports the values that more than half of its like report.",
    how=(
        "Attributes of hosts and NICs, in the groups of `odd-one-out`: who has no value is compared with nothing. In "
        "groups below three none is named."
    ),
    fix=(
        "Install what is missing on the host named (CUDA, a driver, a daemon), or give its agent the rights, the "
        "release and the mounts that the others have."
    ),
)
