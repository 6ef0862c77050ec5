"""One broken NIC of ten costs nothing of the other nine."""

import os
import subprocess

import pytest

VICTIM = "mlx5_3"


def missing_file(tree):
    (tree.ib(VICTIM) / "fw_ver").unlink()


def missing_rate(tree):
    (tree.port(VICTIM) / "rate").unlink()


def missing_counters_directory(tree):
    subprocess.run(["rm", "-r", str(tree.port(VICTIM) / "counters")], check=True)


def missing_ports_directory(tree):
    subprocess.run(["rm", "-r", str(tree.ib(VICTIM) / "ports")], check=True)


def garbage(tree):
    tree.write(tree.port(VICTIM) / "counters/port_rcv_data", "0xZZ garbage 12 34")


def negative(tree):
    tree.write(tree.port(VICTIM) / "counters/port_rcv_data", "-1")


def empty(tree):
    tree.write(tree.port(VICTIM) / "counters/port_rcv_data", b"")


def empty_state(tree):
    tree.write(tree.port(VICTIM) / "state", b"")


def non_utf8(tree):
    tree.write(tree.port(VICTIM) / "counters/port_rcv_data", b"\xff\xfe\x80\n")
    tree.write(tree.ib(VICTIM) / "fw_ver", b"28\xff\x80.\x00\n41\n")
    tree.write(tree.port(VICTIM) / "state", b"\xff\xfe\n")


def giant(tree):
    """4 GB, sparse."""
    for name in ("counters/port_rcv_data", "state", "gids/0"):
        os.truncate(tree.port(VICTIM) / name, 4 << 30)


def symlink_loop(tree):
    path = tree.port(VICTIM) / "counters/port_rcv_data"
    path.unlink()
    path.symlink_to(path.name)


def directory_loop(tree):
    path = tree.root / "class/infiniband" / VICTIM
    path.unlink()
    path.symlink_to(VICTIM)


def dangling_link(tree):
    path = tree.root / "class/infiniband" / VICTIM
    path.unlink()
    path.symlink_to("../../devices/none")


def fifo(tree):
    for name in ("counters/port_rcv_data", "state", "gids/1"):
        (tree.port(VICTIM) / name).unlink()
        os.mkfifo(tree.port(VICTIM) / name)
    (tree.net("eth3np0") / "carrier").unlink()
    os.mkfifo(tree.net("eth3np0") / "carrier")


def directory_in_place_of_a_file(tree):
    path = tree.port(VICTIM) / "counters/port_rcv_data"
    path.unlink()
    path.mkdir()


def file_in_place_of_a_directory(tree):
    missing_counters_directory(tree)
    (tree.port(VICTIM) / "counters").write_text("1\n")


def everything_gone(tree):
    subprocess.run(["rm", "-r", str(tree.ib(VICTIM).parents[1])], check=True)


# What is wrong, and whether it is an error: absence is not, it is how a driver says that it has no such counter.
WAYS = [
    (missing_file, False),
    (missing_rate, False),
    (missing_counters_directory, False),
    (missing_ports_directory, True),
    (garbage, True),
    (negative, True),
    (empty, True),
    (empty_state, True),
    (non_utf8, True),
    (giant, True),
    (symlink_loop, True),
    (directory_loop, True),
    (dangling_link, True),
    (fifo, True),
    (directory_in_place_of_a_file, True),
    (file_in_place_of_a_directory, True),
    (everything_gone, True),
]


@pytest.mark.parametrize(("break_it", "is_error"), WAYS, ids=lambda way: getattr(way, "__name__", ""))
@pytest.mark.parametrize("when", ["before the first scrape", "between two scrapes"])
def test_the_other_nine_are_whole(tree, scrape, break_it, is_error, when):
    """Broken in any way, at any time: every series of the other NICs is there with its value."""
    names = tree.gpu_host(gid_slots=16)
    healthy = scrape(fresh=True)
    if when == "between two scrapes":
        scrape()
    break_it(tree)
    broken = scrape()
    for name in names:
        if name != VICTIM:
            assert broken.of_device(name) == healthy.of_device(name)
    failures = broken.get_one("fabricpulse_nic_device_read_failures", device=VICTIM)
    if is_error:
        assert failures and failures > 0
    else:
        assert not failures


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


def _permission_denied(tree, scrape):
    names = tree.gpu_host(gid_slots=4)
    healthy = scrape(fresh=True)
    (tree.port(VICTIM) / "counters/port_rcv_data").chmod(0)
    (tree.port(VICTIM) / "hw_counters").chmod(0)
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
