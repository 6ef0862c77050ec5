"""What the demo calls its programs: `mesh on h1` is MESH in the node h1."""

MESH, NIC, QP, SIDECAR, AGENT = "mesh", "nic", "qp", "clocksync-sidecar", "remediation-node"
COORDINATOR, RECEIVER = "clocksync-coordinator", "remediation-receiver"
PROMETHEUS, ALERTMANAGER = "prometheus", "alertmanager"

# The process that plays the demo itself.
DEMO = "demo"

# Where Alertmanager notifies on-call, in the management node.
ON_CALL_PORT = 9099
