"""MTU end to end."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="path-mtu",
    category="back-end",
    severity="error",
    title="MTU end to end",
    proves="Packets as large as the sender's MTU pass whole, both ways, on all pairs that were tested.",
    how=(
        "Echo requests of the size of the NIC's MTU that may not be fragmented, where small ones pass. "
        "Between the addresses at which agents were reached: of the smaller MTU of both ends; findings of "
        "these have the category front-end."
    ),
    fix="Set the MTU of the switch ports on the way (9216 or what they can do), or lower that of the NICs.",
)
