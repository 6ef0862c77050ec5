"""Parity: every counter of node_exporter, and every gauge that ours has a name for, has the equal value."""

import sys
from pathlib import Path

from tests.bench.nic.daemons import NIC_PORT, NODE_PORT, nic_command, node_command, parse, rows, running
from tests.fixtures.hostinfo.sys_tree import SysTree

# Every metric of node_exporter's two collectors on this tree, and what ours is called. All counters have an entry, or
# parity is missed. Gauges without one are settings that are the same on all links of a host from boot to shutdown
# (name_assign_type, addr_assign_type, link_mode, netdev_group, dev_id, type, flags, tx_queue_len, ifindex, iflink,
# dormant) and info metrics whose labels ours has elsewhere; the result names them.
SAME_AS = {
    "node_infiniband_excessive_buffer_overrun_errors_total": "excessive_buffer_overrun_errors_total",
    "node_infiniband_link_downed_total": "link_downed_total",
    "node_infiniband_link_error_recovery_total": "link_error_recovery_total",
    "node_infiniband_local_link_integrity_errors_total": "local_link_integrity_errors_total",
    "node_infiniband_multicast_packets_received_total": "multicast_packets_received_total",
    "node_infiniband_multicast_packets_transmitted_total": "multicast_packets_transmitted_total",
    "node_infiniband_physical_state_id": "port_physical_state",
    "node_infiniband_port_constraint_errors_received_total": "receive_constraint_errors_total",
    "node_infiniband_port_constraint_errors_transmitted_total": "transmit_constraint_errors_total",
    "node_infiniband_port_data_received_bytes_total": "received_bytes_total",
    "node_infiniband_port_data_transmitted_bytes_total": "transmitted_bytes_total",
    "node_infiniband_port_discards_received_total": "receive_discards_total",
    "node_infiniband_port_discards_transmitted_total": "transmit_discards_total",
    "node_infiniband_port_errors_received_total": "receive_errors_total",
    "node_infiniband_port_packets_received_total": "received_packets_total",
    "node_infiniband_port_packets_transmitted_total": "transmitted_packets_total",
    "node_infiniband_port_receive_remote_physical_errors_total": "receive_remote_physical_errors_total",
    "node_infiniband_port_receive_switch_relay_errors_total": "receive_switch_relay_errors_total",
    "node_infiniband_port_transmit_wait_total": "transmit_wait_ticks_total",
    "node_infiniband_rate_bytes_per_second": "port_rate_bytes_per_second",
    "node_infiniband_state_id": "port_state",
    "node_infiniband_symbol_error_total": "symbol_errors_total",
    "node_infiniband_unicast_packets_received_total": "unicast_packets_received_total",
    "node_infiniband_unicast_packets_transmitted_total": "unicast_packets_transmitted_total",
    "node_infiniband_vl15_dropped_total": "vl15_dropped_total",
    "node_network_carrier": "link_carrier",
    "node_network_carrier_changes_total": "carrier_changes_total",
    "node_network_carrier_down_changes_total": "carrier_down_changes_total",
    "node_network_carrier_up_changes_total": "carrier_up_changes_total",
    "node_network_mtu_bytes": "link_mtu_bytes",
    "node_network_speed_bytes": "link_speed_bytes_per_second",
    "node_network_up": "link_operational",
}


def bench_parity(root: Path, binary: str) -> None:
    """Every counter of node_exporter, and every gauge that ours has a name for, has the equal value."""
    SysTree(root).gpu_host(gid_slots=255)
    with running(node_command(binary, root), NODE_PORT) as node:
        theirs = list(parse(node.scrape()))
    with running(nic_command(root), NIC_PORT, FABRICPULSE_RUN_DIR=str(root.parent / "run")) as nic:
        ours = {
            (
                name,
                labels.get("rdma_device") or labels.get("device"),
                labels.get("port"),
            ): value
            for name, labels, value in parse(nic.scrape())
        }
    compared, equal, counters = 0, 0, 0
    left_out: set[str] = set()
    for name, labels, value in theirs:
        is_counter = name.endswith("_total") and name.startswith(("node_infiniband_", "node_network_"))
        if name not in SAME_AS and not is_counter:
            if name.startswith(("node_infiniband_", "node_network_")):
                left_out.add(name)
            continue
        compared += 1
        counters += is_counter
        mine = "fabricpulse_nic_" + SAME_AS.get(name, "?")
        found = [
            v for (n, device, port), v in ours.items()
            if n == mine and device == labels["device"] and labels.get("port", port) == port
        ]  # fmt: skip
        if name == "node_network_speed_bytes" and value < 0:
            # A link that is down has no speed: node_exporter prints -125000, we print nothing.
            equal += not found
        elif found == [value]:
            equal += 1
        else:
            print(f"differs: {name} {labels} {value}: {found}", file=sys.stderr)
    rows.report(
        "10 NICs",
        "parity",
        equal / compared,
        "ratio",
        "== 1",
        compared=compared,
        counters=counters,
        left_out=sorted(left_out),
    )
