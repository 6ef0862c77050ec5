"""Connectivity of pairs."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-connectivity",
    category="back-end",
    severity="error",
    title="Connectivity of pairs",
    proves="Packets pass between the NICs of each network, both ways, on all pairs that were tested.",
    how=(
        "Echo requests from the audit agents (`audit run --paths`), in at most 2 log2 n rounds of disjoint "
        "pairs; the run says which share of the pairs of leaves that is. Failed tests are put down to a host, "
        "a NIC or a path. The addresses at which agents were reached are tested in the same way, as the "
        "networks `front-end` and `front-end IPv6`; findings of these have the category front-end."
    ),
    fix=(
        "Look at the link, the address and the routes of the NIC named; a path that fails between two good "
        "NICs is the fabric's: follow it hop by hop."
    ),
)
