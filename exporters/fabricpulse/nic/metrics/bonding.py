"""Metrics of bonds and their slaves."""

from fabricpulse.nic.metrics.declare import counter, gauge

BOND_SLAVES = gauge("bond_slaves", "Links in the bond (class/net/BOND/bonding/slaves).", ("bond", "mode"))
BOND_SLAVE_UP = gauge(
    "bond_slave_up",
    "1 if the bond considers the slave's link up (bonding_slave/mii_status).",
    ("bond", "netdev"),
)
BOND_SLAVE_ACTIVE = gauge(
    "bond_slave_active",
    "1 if the slave carries traffic, 0 if it is a backup (bonding_slave/state).",
    ("bond", "netdev"),
)
BOND_SLAVE_FAILURES = counter(
    "bond_slave_link_failures",
    "Link failures of the slave seen by the bond (bonding_slave/link_failure_count).",
    ("bond", "netdev"),
)
