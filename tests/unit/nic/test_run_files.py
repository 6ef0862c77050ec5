"""Files of the run directory: flap state, event log, and the lock that keeps a second exporter out."""

import json
import os
from pathlib import Path

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.exporters.nic.event_log import EventLog
from fabricpulse.exporters.nic.flap_store import load_links, save_links
from fabricpulse.exporters.nic.flap_tracker import LinkState
from fabricpulse.exporters.nic.run_lock import RunLock

LABELS = ("mlx5_0", "1", "eth0")


def test_state_comes_back_as_it_was_kept(tmp_path):
    links = {
        "eth0": LinkState(ifindex=7, down_count=3, down_since_s=1.5, flap_counts=[1, 0], flap_seconds=0.5)
    }
    save_links(tmp_path / "state", links)
    assert load_links(tmp_path / "state") == links
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[" * 100_000,
        "{}",
        '{"version": 2, "links": {}}',
        '{"version": 1, "links": []}',
        *(
            json.dumps({"version": 1, "links": {"eth0": {key: value}}})
            for key, value in (
                ("down_count", -1),
                ("down_count", "1"),
                ("down_since_s", "yesterday"),
                ("last_transition_s", []),
                ("flap_seconds", None),
                ("flap_seconds", float("nan")),
                ("flap_counts", [0.5]),
                ("flap_counts", [-1]),
                ("flap_counts", None),
            )
        ),
    ],
)
def test_state_that_is_of_no_use_is_no_state(tmp_path, content):
    """Counts begin with the kernel's then; a value that later arithmetic would stumble over is not let in."""
    path = tmp_path / "state"
    path.write_text(content)
    assert load_links(path) == {}


def test_state_that_is_no_file(tmp_path):
    """A FIFO would be waited for, and with it everything."""
    os.mkfifo(tmp_path / "state")
    assert load_links(tmp_path / "state") == {}
    assert load_links(tmp_path) == {}


def test_the_log_is_rotated_by_size(tmp_path):
    log = EventLog(tmp_path / "log", 300)
    for number in range(10):
        log.write(float(number), "link_down", LABELS, number=number)
    log.close()
    kept = [
        json.loads(line)["number"]
        for name in ("log.1", "log")
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert kept == list(range(kept[0], 10))
    assert all((tmp_path / name).stat().st_size <= 300 for name in ("log", "log.1"))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), Path.mkdir])
def test_a_log_that_is_no_file_is_neither_waited_for_nor_renamed(tmp_path, make):
    path = tmp_path / "log"
    make(path)
    log = EventLog(path, 100)
    for number in range(10):
        log.write(float(number), "link_down", LABELS)
    log.close()
    assert [found.name for found in tmp_path.iterdir()] == ["log"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a device file")
def test_a_device_is_not_rotated(tmp_path):
    """flaps.event_log: /dev/null must not end as /dev/null.1."""
    path = tmp_path / "null"
    os.mknod(path, 0o020666, os.makedev(1, 3))
    log = EventLog(path, 100)
    for number in range(10):
        log.write(float(number), "link_down", LABELS)
    log.close()
    assert [found.name for found in tmp_path.iterdir()] == ["null"]


def test_a_second_exporter_is_refused_until_the_first_is_gone(tmp_path):
    first = RunLock(tmp_path)
    with pytest.raises(
        UserError, match=rf"in use by another fabricpulse nic \(process {os.getpid()}\): stop it"
    ):
        RunLock(tmp_path)
    first.release()
    RunLock(tmp_path).release()


def test_a_run_directory_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*nic.lock: No such file or directory"):
        RunLock(tmp_path / "none")
