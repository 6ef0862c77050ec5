"""Files of the run directory: flap state, event log, and the lock that keeps a second exporter out."""

import asyncio
import json
import os

import pytest
from click.testing import CliRunner

from fabricpulse.core.errors import UserError
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.run_lock import RunLock
from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.nic.command import command
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter, event_log
from fabricpulse.nic.flap_store import load_links, save_links
from fabricpulse.nic.flap_tracker import LinkState


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


@pytest.mark.parametrize("on", [True, False])
async def test_without_the_flaps_collector_no_carrier_count_is_read_and_nothing_kept(
    tree, tmp_path, monkeypatch, on
):
    """Neither at start nor at a scrape; with it, the same steps read, keep and tell."""
    tree.mlx5_roce(0)
    collectors = {"flaps": on, "netdev": False}
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    counts: list[str] = []
    real_open = os.open

    def recording_open(path, *args, **kwargs):
        if str(path).endswith("_count") and "/carrier_" in str(path):
            counts.append(str(path))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", recording_open)
    exporter = NicExporter(
        NicConfig(collectors=collectors),
        HostSources(tree.root, link_events=False),
        run_dir=run_dir,
    )
    await exporter.start()
    await exporter.scrape()
    tree.write(tree.net("eth0np0") / "carrier_down_count", 5)
    body = await exporter.scrape()
    exporter.stop()
    assert bool(counts) == on
    assert {path.name for path in run_dir.iterdir()} == (
        {"nic-flaps.json", "nic-events.jsonl"} if on else set()
    )
    assert (b"port_down_transitions" in body) == on


@pytest.mark.parametrize("on", [True, False])
def test_no_log_is_made_where_no_collector_has_events(tmp_path, on):
    config = NicConfig(collectors={"flaps": False, "verbs": False, "kernel_log": on})
    event_log(config, tmp_path).check("flaps.event_log")
    assert [path.name for path in tmp_path.iterdir()] == (["nic-events.jsonl"] if on else [])


def test_a_log_that_cannot_be_written_ends_the_daemon_at_once(tree, tmp_path, monkeypatch):
    """One sentence, and no daemon that loses its events."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path / "run"))
    config = tmp_path / "nic.yaml"
    config.write_text(f"flaps: {{event_log: {tmp_path}/none/log}}\n")
    arguments = [
        "--path.sysfs",
        str(tree.root),
        "--config",
        str(config),
        "--web.listen-address",
        "127.0.0.1:0",
    ]
    with pytest.raises(UserError, match=r"cannot write the event log .*/none/log: No such file or directory"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_a_second_exporter_is_refused_until_the_first_is_gone(tmp_path):
    first = RunLock(tmp_path, "nic")
    with pytest.raises(
        UserError, match=rf"in use by another fabricpulse nic \(process {os.getpid()}\): stop it"
    ):
        RunLock(tmp_path, "nic")
    first.release()
    RunLock(tmp_path, "nic").release()


def test_a_run_directory_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*nic.lock: No such file or directory"):
        RunLock(tmp_path / "none", "nic")


async def test_reading_new_links_is_a_task_of_the_daemon(tree):
    """One at a time, and where the daemon supervises it: what it raises is not lost."""
    tree.mlx5_roce(0)
    exporter = NicExporter(NicConfig(), HostSources(tree.root, link_events=False))
    started: list[asyncio.Task[None]] = []

    def spawn(work):
        started.append(asyncio.create_task(work))
        return started[-1]

    await exporter.start(spawn)
    tree.mlx5_roce(1)
    exporter._unknown_link()
    exporter._unknown_link()
    (task,) = started
    await task
    assert exporter.inventory.netdev("eth1np0") is not None

    def stopping(work):
        work.close()
        raise RuntimeError("the daemon is stopping")

    exporter._spawn = stopping
    exporter._unknown_link()
    exporter.stop()
