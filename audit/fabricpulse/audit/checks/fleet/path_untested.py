"""NICs that were not tested."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-untested",
    category="back-end",
    severity="warning",
    title="NICs that were not tested",
    proves=(
        "Of every NIC of the hosts that were audited each kind of test that was asked for has decided something, "
        "of what it sends and of what it is sent."
    ),
    how=(
        "What agents answer: a NIC that carries a job is not tested with traffic, and says so. A NIC without a "
        "partner, one whose tests a busy host has spoilt, or that there is too little to compare with, one whose "
        "agent may not send echoes, sends no faster than its `transfer_mbit_s`, or has stopped answering, and one "
        "without fleet time where others have it are not known to be good. That the kernel finds no route by the "
        "NIC at which a host was reached, from that address, is a finding of the category front-end."
    ),
    fix=(
        "Run the tests again when no job runs on the host named, or with more hosts; give its agent what the "
        "finding says that it lacks, and look at it if it has not answered."
    ),
)
