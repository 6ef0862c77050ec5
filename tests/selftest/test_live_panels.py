"""Which empty panels the bench of live panels takes for those that need hardware."""

from tests.bench.rules.live_panels import needs

PORTS = "count(fabricpulse_nic_port_up == 0) or 0 * count(fabricpulse_nic_port_up)"


def test_a_panel_of_devices_that_are_not_there_needs_them() -> None:
    """By the metric, also where a record stands between."""
    assert needs([PORTS], ["up"]) == {"fabricpulse_nic_port_up": "an RDMA device"}
    assert list(needs(["firmware:fabricpulse_nic_info:count"], [])) == ["fabricpulse_nic_info"]


def test_a_panel_that_reads_anything_else_needs_none() -> None:
    """It is empty for another reason: where the metric is there, where another one is read, and by way of records."""
    assert needs([PORTS], ["fabricpulse_nic_port_up"]) == {}
    assert needs([PORTS, "fabricpulse_lane_state"], []) == {}
    assert needs(["device:fabricpulse_nic_attribute:different"], ["fabricpulse_nic_link_mtu_bytes"]) == {}
