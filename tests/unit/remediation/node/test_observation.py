"""Health of NICs: by link and by probe, with what happened between two readings."""

import errno
import os
from pathlib import Path

from tests.fixtures.descriptors import none_left

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


def test_an_interface_that_is_down_has_no_carrier(tmp_path, monkeypatch):
    """Reading it fails with EINVAL."""
    nic(tmp_path, "eth1", "1")

    def read_text(path: Path) -> str:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))

    monkeypatch.setattr(Path, "read_text", read_text)
    assert LinkObserver(tmp_path).observe(Survey(), ["eth1"]) == {"eth1": "unhealthy"}


def test_a_link_that_cannot_be_read_is_not_known(tmp_path):
    """A user who has opened all files that the kernel allows kept NICs out for as long as he liked. What happens
    meanwhile is seen afterwards."""
    nic(tmp_path, "eth1", "1", "4")
    observer = LinkObserver(tmp_path)
    assert observer.observe(Survey(), ["eth1"]) == {"eth1": "healthy"}
    with none_left():
        assert observer.observe(Survey(), ["eth1"]) == {}
    assert observer.observe(Survey(), ["eth1"]) == {"eth1": "healthy"}
    with none_left():
        observer.observe(Survey(), ["eth1"])
    nic(tmp_path, "eth1", "1", "6")
    assert observer.observe(Survey(), ["eth1"]) == {"eth1": "unhealthy"}


def test_probes():
    """Connected now and without a disconnect since the last scrape."""
    observer = ProbeObserver()
    assert observer.observe({"a": True, "b": False}, {"a": 3, "b": 1}) == {"a": "healthy", "b": "unhealthy"}
    assert observer.observe({"a": True, "b": True}, {"a": 3, "b": 1}) == {"a": "healthy", "b": "healthy"}
    assert observer.observe({"a": True}, {"a": 4}) == {"a": "unhealthy"}
    assert observer.observe({"a": True}, {"a": 0}) == {"a": "healthy"}  # the exporter has restarted
    assert observer.observe({}, {}) == {}


def test_a_disconnect_that_no_scrape_has_seen(monkeypatch):
    """The exporter did not answer meanwhile, or did not have the NIC. NICs that come and go fill no memory."""
    monkeypatch.setattr("fabricpulse.remediation.node.observation.MAX_NICS", 2)
    observer = ProbeObserver()
    observer.observe({"a": True, "b": True}, {"a": 3, "b": 1})
    observer.observe({}, {})
    observer.observe({"b": True}, {"b": 1})
    assert observer.observe({"a": True, "b": True}, {"a": 4, "b": 1}) == {"a": "unhealthy", "b": "healthy"}
    for number in range(10):
        observer.observe({f"n{number}": True}, {f"n{number}": number})
    assert len(observer._disconnects) == 2


def test_nics_of_the_kernel(tmp_path):
    """Hardware first, as a host with containers has many interfaces of software; without sysfs there is none."""
    for name in ("net/eth0/device", "net/veth0", "infiniband/mlx5_0/device"):
        (tmp_path / name).mkdir(parents=True)
    assert kernel_nics(tmp_path) == {"eth0": 0, "veth0": 1, "mlx5_0": 0}
    assert kernel_nics(tmp_path / "none") == {}
