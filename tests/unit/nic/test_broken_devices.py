"""One broken NIC of ten costs nothing of the other nine."""

import errno
import logging
import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.nic.broken_nic import VICTIM, WAYS, garbage, permission_denied

from fabricpulse.nic.config import NicConfig

pytestmark = pytest.mark.thorough

RAW = NicConfig(raw_counters=True)
NETDEV = "eth3np0"


@pytest.mark.parametrize(("break_it", "is_error"), WAYS, ids=lambda way: getattr(way, "__name__", ""))
def test_the_other_nine_are_whole(tree, scrape, break_it, is_error):
    """Broken in any way, between two scrapes or before the first: every series of the other NICs is there with its
    value.
    """
    names = tree.gpu_host(gid_slots=16)
    healthy = scrape(RAW)
    break_it(tree)
    _the_other_nine_are_whole(names, healthy, scrape(RAW), is_error)
    _the_other_nine_are_whole(names, healthy, scrape(RAW, fresh=True), is_error)


def _the_other_nine_are_whole(names, healthy, broken, is_error):
    # What Prometheus would refuse: it takes no number that is not finite in 64 bits, and then no other either.
    assert all(math.isfinite(value) for (name, _), value in broken.items() if not name.endswith("_bucket"))
    for name in names:
        if name != VICTIM:
            assert broken.of_device(name) == healthy.of_device(name)
    rows = broken.labels("fabricpulse_nic_device_read_failures")
    of_victim = [row for row in rows if row["rdma_device"] == VICTIM or row["device"] == NETDEV]
    failures = sum(broken.get_one("fabricpulse_nic_device_read_failures", **row) for row in of_victim)
    assert (failures > 0) == is_error


@pytest.mark.parametrize("moment", ["opening", "reading"])
def test_a_device_that_disappears_during_a_scrape(tree, scrape, monkeypatch, moment):
    """Driver unbound between two reads of one scrape: what was read before is there, the rest absent, no one else hit.

    sysfs answers ENODEV to a read of a file that was open when its device went; a removed tree does not, so this does.
    """
    names = tree.gpu_host(gid_slots=4)
    healthy = scrape(fresh=True)
    if moment == "reading":
        scrape()
    real_open, real_pread = os.open, os.pread
    victim = str(tree.ib(VICTIM))
    gone = []

    def unbind(path: str) -> None:
        if (
            not gone
            and path.endswith("counters/port_xmit_data")
            and os.path.realpath(path).startswith(victim)
        ):
            gone.append(path)
            subprocess.run(["rm", "-r", str(tree.ib(VICTIM).parents[1])], check=True)

    def opening(path, *arguments, **options):
        unbind(str(path))
        return real_open(path, *arguments, **options)

    def reading(descriptor, length, offset):
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink()).removesuffix(" (deleted)")
        unbind(path)
        if gone and path.startswith(victim):
            raise OSError(errno.ENODEV, "No such device")
        return real_pread(descriptor, length, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opening)
        patch.setattr(os, "pread", reading)
        during = scrape()
    assert gone
    after = scrape()
    for name in names:
        if name != VICTIM:
            assert during.of_device(name) == healthy.of_device(name)
            assert after.of_device(name) == healthy.of_device(name)
    assert during.get_one("fabricpulse_nic_port_state", rdma_device=VICTIM) == 4
    assert during.get_one("fabricpulse_nic_transmitted_bytes_total", rdma_device=VICTIM) is None
    assert after.get_one("fabricpulse_nic_port_state", rdma_device=VICTIM) is None


def test_broken_file_costs_only_its_own_series(tree, scrape):
    """Garbage in one counter: that counter is absent, the other hundred of the NIC are not."""
    tree.gpu_host(gid_slots=16)
    healthy = scrape(fresh=True)
    garbage(tree)
    broken = scrape()
    lost = healthy.of_device(VICTIM).keys() - broken.of_device(VICTIM).keys()
    assert lost == {
        (
            "fabricpulse_nic_received_bytes_total",
            (("device", "eth3np0"), ("rdma_device", VICTIM), ("port", "1")),
        )
    }
    assert broken.get_one("fabricpulse_scrape_collector_success", collector="infiniband") == 0
    assert broken.get_one("fabricpulse_scrape_collector_success", collector="netdev") == 1
    assert broken.get_one("fabricpulse_nic_read_failures_total", reason="unparsable") >= 1


def test_the_log_says_which_file_and_why(tree, scrape, caplog):
    """The log has the path and the reason, once, and not again while nothing changes."""
    tree.mlx5_roce(0)
    path = tree.port("mlx5_0") / "counters/symbol_error"
    tree.write(path, "garbage")
    with caplog.at_level(logging.WARNING):
        scrape()
        scrape()
    (logged,) = [record for record in caplog.records if "cannot be read" in record.getMessage()]
    assert logged.fields["target"] == "mlx5_0"
    assert logged.fields["error"].endswith("ports/1/counters/symbol_error: unparsable")


def test_a_nic_without_statistics_is_reported(tree, scrape):
    """What else there is of the link is exported, and the missing directory is an error with a reason of its own."""
    tree.mlx5_roce(0)
    shutil.rmtree(tree.net("eth0np0") / "statistics")
    got = scrape()
    assert got.get_one("fabricpulse_nic_link_mtu_bytes", device="eth0np0") == 9000
    assert got.get_one("fabricpulse_nic_link_received_bytes_total", device="eth0np0") is None
    assert got.get_one("fabricpulse_nic_device_read_failures", device="eth0np0", rdma_device="") == 1
    assert got.get_one("fabricpulse_nic_read_failures_total", reason="no_statistics") >= 1
    assert got.get_one("fabricpulse_scrape_collector_success", collector="inventory") == 0


def test_what_is_no_link_among_the_links_is_no_error(tree, scrape):
    """The bonding driver keeps a plain file beside the links."""
    tree.mlx5_roce(0)
    tree.write(tree.root / "class/net/bonding_masters", "bond0")
    got = scrape()
    assert got.labels("fabricpulse_nic_device_read_failures", device="bonding_masters") == []


def _permission_denied(tree, scrape) -> None:
    names = tree.gpu_host(gid_slots=4)
    healthy = scrape(fresh=True)
    permission_denied(tree)
    broken = scrape(fresh=True)
    for name in names:
        if name != VICTIM:
            assert broken.of_device(name) == healthy.of_device(name)
    assert broken.get_one("fabricpulse_nic_device_read_failures", rdma_device=VICTIM) == 2
    assert broken.get_one("fabricpulse_nic_read_failures_total", reason="permission") == 2


def test_permission_denied(tree, scrape, tmp_path):
    """Files that the exporter's user may not read: counted by reason, the rest is whole."""
    if os.geteuid() != 0:
        _permission_denied(tree, scrape)
        return
    # Root reads any file, so the reading is done as nobody.
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o055)
    subprocess.run(["chown", "-R", "65534", str(tree.root)], check=True)
    os.seteuid(65534)
    try:
        _permission_denied(tree, scrape)
    finally:
        os.seteuid(0)
