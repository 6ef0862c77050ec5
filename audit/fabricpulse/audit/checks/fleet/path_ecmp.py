"""Each of several equal paths."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-ecmp",
    category="back-end",
    severity="error",
    title="Each of several equal paths",
    proves=(
        "Datagrams of all UDP source ports arrive alike: none loses where others lose nothing, none is later."
    ),
    how=(
        "The datagrams of `audit run --transfers` leave from 16 source ports in turn, 125 each with the "
        "defaults, to one port: switches spread them over equal paths (ECMP) by their ports. Ways that differ "
        "are tested again."
    ),
    fix=(
        "Trace the path of a port that is named, and of one that is not: `traceroute --udp --sport=PORT -p "
        "DPORT HOST` from the first host named; the hop where they part begins the bad path."
    ),
)
