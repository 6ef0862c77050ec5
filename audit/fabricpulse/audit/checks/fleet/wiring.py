"""Wiring plan."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="wiring",
    category="back-end",
    severity="error",
    title="Wiring plan",
    proves="The cable of each NIC goes to the switch, and the port, that the plan names.",
    how=(
        "LLDP frames that the agents receive (`audit run --wiring`), against the plan: `--wiring-file`, or "
        "`leaf` of the NIC in the membership."
    ),
    fix="Move the cable of the NIC named, or correct the plan; a NIC that it is swapped with is named too.",
)
