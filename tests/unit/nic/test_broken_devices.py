"""One broken NIC of ten costs nothing of the other nine."""

import errno
import math
import os
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.broken_nic import VICTIM, WAYS, garbage, permission_denied

from fabricpulse.nic.config import NicConfig

RAW = NicConfig(raw_counters=True)


@pytest.mark.parametrize(("break_it", "is_error"), WAYS, ids=lambda way: getattr(way, "__name__", ""))
@pytest.mark.parametrize("when", ["before the first scrape", "between two scrapes"])
def test_the_other_nine_are_whole(tree, scrape, break_it, is_error, when):
    """Broken in any way, at any time: every series of the other NICs is there with its value."""
    names = tree.gpu_host(gid_slots=16)
    healthy = scrape(RAW, fresh=True)
    if when == "between two scrapes":
        scrape(RAW)
    break_it(tree)
    broken = scrape(RAW)
    # What Prometheus would refuse: it takes no number that is not finite in 64 bits, and then no other either.
    assert all(math.isfinite(value) for (name, _), value in broken.items() if not name.endswith("_bucket"))
    for name in names:
        if name != VICTIM:
            assert broken.of_device(name) == healthy.of_device(name)
    failures = broken.get_one("fabricpulse_nic_device_read_failures", device=VICTIM)
    if is_error:
        assert failures and failures > 0
    else:
        assert not failures


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
    assert during.get_one("fabricpulse_nic_port_state", device=VICTIM) == 4
    assert during.get_one("fabricpulse_nic_transmitted_bytes_total", device=VICTIM) is None
    assert after.get_one("fabricpulse_nic_port_state", device=VICTIM) is None


def test_broken_file_costs_only_its_own_series(tree, scrape):
    """Garbage in one counter: that counter is absent, the other hundred of the NIC are not."""
    tree.gpu_host(gid_slots=16)
    healthy = scrape(fresh=True)
    garbage(tree)
    broken = scrape()
    lost = healthy.of_device(VICTIM).keys() - broken.of_device(VICTIM).keys()
    assert lost == {("fabricpulse_nic_received_bytes_total", (("device", VICTIM), ("port", "1")))}
    assert broken.get_one("fabricpulse_scrape_collector_success", collector="infiniband") == 0
    assert broken.get_one("fabricpulse_scrape_collector_success", collector="netdev") == 1
    assert broken.get_one("fabricpulse_nic_read_failures_total", reason="unparsable") >= 1


def _permission_denied(tree, scrape) -> None:
    names = tree.gpu_host(gid_slots=4)
    healthy = scrape(fresh=True)
    permission_denied(tree)
    broken = scrape(fresh=True)
    for name in names:
        if name != VICTIM:
            assert broken.of_device(name) == healthy.of_device(name)
    assert broken.get_one("fabricpulse_nic_device_read_failures", device=VICTIM) == 2
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
