"""NICs that were not tested."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-untested",
    category="back-end",
    severity="warning",
    title="NICs that were not tested",
    proves="Every NIC that tests were planned for has taken part.",
    how=(
        "What agents answer: a NIC that carries a job is not tested with traffic, and says so. That the "
        "kernel finds no route by the NIC at which a host was reached, from that address, is a finding of the "
        "category front-end."
    ),
    fix="Run the tests again when no job runs on the host named; look at its agent if it has not answered.",
)
