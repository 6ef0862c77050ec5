"""Health of NICs: by link and by probe, with what happened between two readings."""

from pathlib import Path

from fabricpulse.remediation.node.kernel_nics import kernel_nics
from fabricpulse.remediation.node.observation import LinkObserver, ProbeObserver
from fabricpulse.remediation.node.survey import Survey


def nic(folder: Path, device: str, carrier: str, changes: str = "0") -> None:
    (folder / device).mkdir(exist_ok=True)
    (folder / device / "carrier").write_text(carrier + "\n")
    (folder / device / "carrier_changes").write_text(changes + "\n")


def survey(**links: str) -> Survey:
    return Survey(
        {"1": {"devices": [{"device": d, "link": link, "avoided": False} for d, link in links.items()]}}
    )


def test_links(tmp_path):
    """Up is healthy, down by sysfs or by a process is not, and what nobody knows is left out."""
    nic(tmp_path, "eth1", "1")
    nic(tmp_path, "eth2", "0")
    observer = LinkObserver(tmp_path)
    found = observer.observe(survey(eth1="up", eth2="up", rail3="down", rail4="up"), ["eth9", "../x"])
    assert found == {"eth1": "healthy", "eth2": "unhealthy", "rail3": "unhealthy", "rail4": "healthy"}


def test_a_flap_between_two_readings_is_seen(tmp_path):
    """The link is up at both readings and was down between them."""
    observer = LinkObserver(tmp_path)
    nic(tmp_path, "eth1", "1", "4")
    assert observer.observe(Survey(), ["eth1"]) == {"eth1": "healthy"}
    nic(tmp_path, "eth1", "1", "6")
    assert observer.observe(Survey(), ["eth1"]) == {"eth1": "unhealthy"}
    assert observer.observe(Survey(), ["eth1"]) == {"eth1": "healthy"}


def test_an_interface_that_is_down_has_no_carrier(tmp_path):
    """Reading it fails with EINVAL; a directory in its place fails as well."""
    (tmp_path / "eth1" / "carrier").mkdir(parents=True)
    assert LinkObserver(tmp_path).observe(Survey(), ["eth1"]) == {"eth1": "unhealthy"}


def test_probes():
    """Connected now and without a disconnect since the last scrape."""
    observer = ProbeObserver()
    assert observer.observe({"a": True, "b": False}, {"a": 3, "b": 1}) == {"a": "healthy", "b": "unhealthy"}
    assert observer.observe({"a": True, "b": True}, {"a": 3, "b": 1}) == {"a": "healthy", "b": "healthy"}
    assert observer.observe({"a": True}, {"a": 4}) == {"a": "unhealthy"}
    assert observer.observe({"a": True}, {"a": 0}) == {"a": "healthy"}  # the exporter has restarted
    assert observer.observe({}, {}) == {}


def test_nics_of_the_kernel(tmp_path):
    """Hardware first, as a host with containers has many interfaces of software; without sysfs there is none."""
    for name in ("net/eth0/device", "net/veth0", "infiniband/mlx5_0/device"):
        (tmp_path / name).mkdir(parents=True)
    assert kernel_nics(tmp_path) == {"eth0": 0, "veth0": 1, "mlx5_0": 0}
    assert kernel_nics(tmp_path / "none") == {}
