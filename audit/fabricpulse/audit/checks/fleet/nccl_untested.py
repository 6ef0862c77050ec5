"""Hosts of which no ring of NCCL says anything."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="nccl-untested",
    category="back-end",
    severity="warning",
    title="Hosts that were in no ring",
    proves="Each host that a ring of NCCL was asked for was in one.",
    how="`audit run --nccl`: a ring takes two hosts at least that have a NIC of one network.",
    fix="Run the test again with more hosts.",
)
