"""Clocks beside one another."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="clock-offset",
    category="fleet",
    severity="error",
    title="Clocks beside one another",
    proves="The clock of no host is more than two seconds off those of most hosts.",
    how=(
        "When each host says that its audit began, by its own clock, between the request and the answer by "
        "the clock of `audit run`: an interval as long as the audit takes. The difference that more than half "
        "of the clocks allow, with that of `audit run` unless a host has the same, is the fleet's; of two "
        "that differ none is named."
    ),
    fix=(
        "Start the time service of the host named (`chronyc tracking`), step its clock, and see that its name "
        "servers and time servers are reachable. `clock-synchronized` shows what fleet time needs, which is "
        "far less."
    ),
)
