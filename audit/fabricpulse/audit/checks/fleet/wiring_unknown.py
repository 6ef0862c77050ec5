"""Wiring that is not known."""

from fabricpulse.audit.host.check import Check

CHECK = Check(
    id="wiring-unknown",
    category="back-end",
    severity="warning",
    title="Wiring that is not known",
    proves=(
        "For each NIC of the plan LLDP has shown where its cable goes, and the plan says which switch that is."
    ),
    how="LLDP frames that the agents receive (`audit run --wiring`) within `--wiring-wait`.",
    fix=(
        "Write names qualified where two switches have one short name. Switch LLDP on at the switch port; give the "
        "agent CAP_NET_RAW (audit/README.md); a NIC whose firmware keeps LLDP to itself must be set not to (ice: "
        "`ethtool --set-priv-flags DEV fw-lldp-agent off`)."
    ),
)
