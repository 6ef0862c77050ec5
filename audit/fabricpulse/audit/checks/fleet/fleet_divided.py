"""Fleet divided."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="fleet-divided",
    category="fleet",
    severity="warning",
    title="Fleet divided",
    proves="In each group of like hosts or NICs one value of each attribute has a majority.",
    how=(
        "In the groups of `odd-one-out`; without a majority it is not known which value is right, so no host "
        "is named. Two hosts are compared where they are the same machine, with GPUs or RDMA devices."
    ),
    fix="Decide which value is right, and pin it in a profile.",
)
