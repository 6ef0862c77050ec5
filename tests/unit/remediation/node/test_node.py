"""The agent's side of the control sockets."""

import asyncio
import sqlite3
import stat
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fixtures.plugin.control_server import ControlServer

from fabricpulse.core.config import parse_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.remediation.node.agent import NodeAgent
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.journal import JournalError, NodeJournal
from fabricpulse.remediation.node.mesh import MeshNics, parse_mesh
from fabricpulse.remediation.node.receiver_client import ReceiverError
from fabricpulse.remediation.node.survey import Survey, nics_of, traffic_outcome
from fabricpulse.remediation.protocol import MAX_REPORT_BYTES, DesiredNic, DesiredState, LaneSample, Report

AVOID = DesiredNic("rail0", "avoid", 10, "op-10")
RESTORE = DesiredNic("rail0", "in_service", 11, "op-11")


def test_apply_and_verify(plugins, server):
    """Applied means that the process shows it; asked again it changes nothing."""
    for _ in range(3):
        result = plugins.apply(AVOID)
        assert (result.outcome, result.processes) == ("applied", 1)
    assert server.effects == [("op-10", "nic.avoid", "rail0")]
    assert plugins.apply(RESTORE).outcome == "applied"
    assert plugins.survey().devices() == {"rail0": True, "rail1": True}
    assert plugins.calls["duplicate"] == 2


def test_a_nic_that_somebody_puts_back_leaves_again(plugins, server):
    """A process carries an operation out but once: with the same one again it would keep the NIC for ever."""
    plugins.apply(AVOID)
    server.answer(by_hand("nic.restore", 10))
    (name,) = plugins.survey().divergent_processes(AVOID)
    result = plugins.apply(AVOID, [name])
    assert (result.op_id, result.outcome, result.processes) == ("op-10", "applied", 1)
    assert [op for _, op, _ in server.effects] == ["nic.avoid", "nic.restore", "nic.avoid"]


def test_a_nic_that_somebody_takes_out_stays_out(plugins, server):
    """Also where remediation has put it back once."""
    plugins.apply(AVOID)
    plugins.apply(RESTORE)
    server.answer(by_hand("nic.avoid", 11))
    (name,) = plugins.survey().divergent_processes(RESTORE)
    assert plugins.apply(RESTORE, [name]).outcome == "failed"
    assert plugins.survey().devices()["rail0"] is False


def by_hand(operation: str, generation: int) -> dict[str, object]:
    """As `fabricpulse plugin ctl` says it: with the newest generation that the process has accepted."""
    return {"op": operation, "op_id": "by-hand", "generation": generation, "device": "rail0"}


def test_a_process_that_does_not_use_the_nic_counts_as_done(plugins, tmp_path):
    """It has nothing to do."""
    server = ControlServer(tmp_path, ["rail1"])
    result = plugins.apply(AVOID)
    server.close()
    assert (result.outcome, result.processes) == ("applied", 0)


def test_no_processes(plugins):
    """A host without jobs is soon in line."""
    assert plugins.apply(AVOID).outcome == "applied"
    assert plugins.survey() == Survey({})


def test_a_refusal_carries_the_plugins_words(plugins, server):
    """The sentence reaches the journal."""
    server.link["rail1"] = "down"
    result = plugins.apply(AVOID)
    assert (result.outcome, "no other healthy lane" in result.message) == ("refused", True)


def test_a_promise_that_is_not_kept_is_a_failure(plugins, server, monkeypatch):
    """`ok` is not enough: the status must show it."""
    monkeypatch.setattr(server, "_change", lambda request: {"ok": True, "op_id": request["op_id"]})
    result = plugins.apply(AVOID)
    assert (result.outcome, "not shown within" in result.message) == ("failed", True)


def full(journal: NodeJournal, *, is_full: bool) -> None:
    """As when the disk is, by SQLite itself."""
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages if is_full else 2**30}")


def many(generation: int) -> list[DesiredNic]:
    """More than fits into the pages that are there."""
    return [DesiredNic(f"rail{i}", "avoid", generation, "x" * 200 + str(i)) for i in range(64)]


def test_a_full_disk_costs_no_promise(tmp_path):
    """What was not written was not accepted; the journal works again when there is room."""
    journal = NodeJournal(tmp_path / "node.db")
    journal.accept(1, [AVOID], 4e9)
    full(journal, is_full=True)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"node.db cannot be written: database or disk is full"):
            journal.accept(2, many(20), 4e9)
    assert (journal.epoch(), journal.desired(), journal.waiting()) == (1, {"rail0": AVOID}, {"op-10": 4e9})
    full(journal, is_full=False)
    journal.accept(2, many(20), 4e9)
    assert (journal.epoch(), len(journal.desired())) == (2, 64)
    journal.close()


async def test_an_agent_outlives_a_full_disk(tmp_path, monkeypatch):
    """It ended at the next desired state, and at each start after that: jobs that began then used every NIC. Now it is
    not ready, keeps what it has, and goes on when there is room."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr("fabricpulse.remediation.node.intake.RETRY_S", 0.001)
    agent = NodeAgent(
        parse_config(f"{{host: h0, journal: {tmp_path / 'node.db'}}}", NodeConfig, "t"), Lifetime()
    )
    asked = 0

    class Receiver:
        async def fetch_desired(self, version: str) -> DesiredState:
            nonlocal asked
            asked += 1
            if asked == 3:
                assert "disk is full" in agent.intake.problem
                full(agent.intake.journal, is_full=False)
            if asked == 6:
                raise asyncio.CancelledError
            return DesiredState("h0", 7, "1", many(20), 4e9)

    full(agent.intake.journal, is_full=True)
    with pytest.raises(asyncio.CancelledError):
        await agent.intake.fetch_forever(Receiver())
    assert (len(agent.intake.journal.desired()), agent.intake.problem) == (64, "")
    # Also what was carried out meanwhile is noted once there is room.
    agent.intake._done.append(many(20)[0].op_id)
    with monkeypatch.context() as broken:
        broken.setattr(
            agent.intake.journal, "carried_out", lambda _: (_ for _ in ()).throw(JournalError("full"))
        )
        agent.intake.note_done()
    assert (len(agent.intake._done), agent.intake.problem) == (1, "full")
    agent.intake.note_done()
    assert (agent.intake._done, agent.intake.problem, len(agent.intake.journal.waiting())) == ([], "", 63)
    agent.close()


async def test_a_return_that_is_shown_late_is_reported(tmp_path, monkeypatch):
    """It has failed, as nobody showed it in time; without a word afterwards the receiver would count the NIC as out."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    text = f"{{host: h0, journal: {tmp_path / 'node.db'}, verify_timeout_s: 0.1}}"
    agent = NodeAgent(parse_config(text, NodeConfig, "test"), Lifetime())
    server = ControlServer(tmp_path / "plugin", ["rail0", "rail1"])
    try:
        status = server._status
        server.avoided["rail0"] = True
        assert agent.intake.accept(DesiredState("h0", 1, "1", [RESTORE], 4e9))
        with monkeypatch.context() as late:
            out = {"device": "rail0", "link": "up", "avoided": True}
            late.setattr(server, "_status", lambda request: status(request) | {"devices": [out]})
            # The processes that do not follow get it again, in vain.
            await agent.reconciler.reconcile()
        assert agent.results.latest[RESTORE.op_id].outcome == "failed"
        agent.host.surveyed_at = 0.0  # the next survey is due
        await agent.reconciler.reconcile()
        assert agent.results.unreported[RESTORE.op_id].outcome == "applied"
        assert server.effects == [(RESTORE.op_id, "nic.restore", "rail0")]
    finally:
        server.close()
        agent.close()


def test_a_process_that_hangs_alone_is_a_failure(plugins, server):
    """Nobody followed, so nothing was done."""
    server.hang.set()
    result = plugins.apply(AVOID)
    assert (result.outcome, "timed out" in result.message) == ("failed", True)


@contextmanager
def agent_of(folder: Path, text: str = "") -> Iterator[NodeAgent]:
    config = parse_config(f"host: h0\njournal: {folder / 'node.db'}\n{text}", NodeConfig, "test")
    agent = NodeAgent(config, Lifetime())
    try:
        yield agent
    finally:
        agent.close()


async def test_a_host_without_jobs_has_its_limits_as_well(tmp_path, monkeypatch):
    """What was taken out while no job ran was taken out of each that came: all NICs but the last, by a receiver that is
    none, on a host that was paused, or of NICs that are not listed."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr("fabricpulse.remediation.node.local_host.kernel_has", lambda _device: True)
    rails = [DesiredNic(f"rail{i}", "avoid", 10, f"op-{i}") for i in range(3)]
    with agent_of(tmp_path) as agent:
        agent.intake.accept(DesiredState("h0", 1, "1", rails, 4e9))
        await agent.reconciler.reconcile()
        assert [agent.results.latest[nic.op_id].outcome for nic in rails] == ["refused"] * 3
        restores = [DesiredNic(f"rail{i}", "in_service", 11, f"back-{i}") for i in (1, 2)]
        agent.intake.accept(DesiredState("h0", 1, "2", restores, 4e9))
        alone = DesiredNic("rail0", "avoid", 12, "alone")
        agent.intake.accept(DesiredState("h0", 1, "3", [alone], 4e9))
        await agent.reconciler.reconcile()
        assert agent.results.latest["alone"].outcome == "applied"
    for text in ("devices: [rail1]", f"pause_file: {tmp_path / 'node.db'}"):
        (tmp_path / text[:3]).mkdir()
        with agent_of(tmp_path / text[:3], text) as agent:
            agent.intake.accept(DesiredState("h0", 1, "1", [AVOID], 4e9))
            await agent.reconciler.reconcile()
            assert agent.results.latest[AVOID.op_id].outcome == "refused"


async def test_a_nic_that_the_host_lacks_is_refused(tmp_path, monkeypatch):
    """Its avoid counted as done. Where the mesh does not answer it may be there: the agent may have another network
    namespace than the jobs."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    mesh = MeshNics({"rail1": True, "rail2": True})
    for number, (text, seen, device, outcome) in enumerate(
        [
            ("", MeshNics(), "rail7", "refused"),
            ("", MeshNics(), "lo", "applied"),
            ("mesh_url: http://localhost:1", mesh, "rail7", "refused"),
            ("mesh_url: http://localhost:1", mesh, "rail1", "applied"),
            ("mesh_url: http://localhost:1", MeshNics(), "rail7", "applied"),
            ("devices: [rail7]", MeshNics(), "rail7", "applied"),
        ]
    ):
        (folder := tmp_path / f"a{number}").mkdir()
        with agent_of(folder, text) as agent:
            agent.host.mesh = seen
            for dry_run in (True, False):
                nic = DesiredNic(device, "avoid", 10, f"op-{dry_run}", dry_run)
                agent.intake.accept(DesiredState("h0", 1, "1", [nic], 4e9))
                await agent.reconciler.reconcile()
                found = agent.results.latest[nic.op_id]
                assert (found.outcome, "has no NIC rail7" in found.message) == (outcome, outcome == "refused")


async def test_a_pause_file_that_cannot_be_asked_for_is_a_pause(tmp_path, monkeypatch):
    """On a file system that is away, say. It ended the agent; a return is carried out all the same."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for number, name in enumerate(("x" * 300, "loop/file")):
        (folder := tmp_path / f"a{number}").mkdir()
        with agent_of(folder, f"pause_file: {tmp_path / name}") as agent:
            agent.intake.accept(DesiredState("h0", 1, "1", [AVOID], 4e9))
            await agent.reconciler.reconcile()
            assert "cannot tell whether" in agent.results.latest[AVOID.op_id].message
            agent.intake.accept(DesiredState("h0", 1, "2", [RESTORE], 4e9))
            await agent.reconciler.reconcile()
            assert agent.results.latest[RESTORE.op_id].outcome == "applied"


async def test_the_mesh_says_how_many_nics_a_host_without_jobs_has(tmp_path, monkeypatch):
    """Half of four may leave there, as beside a job; so may half of those that are listed."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    rails = [f"rail{i}" for i in range(4)]
    for text, mesh in (
        ("", MeshNics(dict.fromkeys(rails, True))),
        (f"devices: [{', '.join(rails)}]", MeshNics()),
    ):
        folder = tmp_path / f"a{len(text)}"
        folder.mkdir()
        with agent_of(folder, text) as agent:
            agent.host.mesh = mesh
            found = []
            for number, rail in enumerate(rails[:3], 1):
                nic = DesiredNic(rail, "avoid", number, rail)
                agent.intake.accept(DesiredState("h0", 1, str(number), [nic], 4e9))
                await agent.reconciler.reconcile()
                found.append(agent.results.latest[rail].outcome)
            assert found == ["applied", "applied", "refused"]


async def test_what_was_carried_out_outlives_a_pause_and_a_restart(tmp_path, monkeypatch):
    """An agent that starts again on a host without jobs, paused by now, goes on with what it has done."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr("fabricpulse.remediation.node.local_host.kernel_has", lambda _device: True)
    with agent_of(tmp_path) as agent:
        agent.intake.accept(DesiredState("h0", 1, "1", [AVOID], 4e9))
        await agent.reconciler.reconcile()
    with agent_of(tmp_path, f"pause_file: {tmp_path / 'node.db'}") as agent:
        await agent.reconciler.reconcile()
        assert agent.results.latest[AVOID.op_id].outcome == "applied"


async def test_a_job_that_started_while_the_agent_was_down_follows_after_a_pause(tmp_path, monkeypatch):
    """It stayed on the NIC until the agent started once more: the refusal was final."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    with agent_of(tmp_path) as agent:
        agent.host.mesh = MeshNics({"rail0": True, "rail1": True})
        agent.intake.accept(DesiredState("h0", 1, "1", [AVOID], 4e9))
        await agent.reconciler.reconcile()
    server = ControlServer(tmp_path / "plugin", ["rail0", "rail1"])
    paused = tmp_path / "paused"
    paused.touch()
    try:
        with agent_of(tmp_path, f"pause_file: {paused}") as agent:
            agent.reconciler.tasks = NoTasks()
            await agent.reconciler.reconcile()
            assert (server.avoided["rail0"], agent.results.unreported[AVOID.op_id].outcome) == (
                False,
                "refused",
            )
            await agent.reconciler.reconcile()
            assert not server.avoided["rail0"], "what was refused is not forced on it as a straggler"
            paused.unlink()
            await agent.reconciler.reconcile()
            assert (server.avoided["rail0"], agent.results.latest[AVOID.op_id].outcome) == (True, "applied")
    finally:
        server.close()


class NoTasks:
    """Nobody watches the traffic."""

    def start(self, name: str, work: Coroutine[Any, Any, None], *, may_end: bool = False) -> None:
        work.close()


async def test_a_return_that_a_process_refused_is_asked_for_again(tmp_path, monkeypatch):
    """One hostile socket said no and went away, and the NIC counted as out for ever."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    job = ControlServer(tmp_path / "plugin", ["rail0", "rail1"], name="11")
    hostile = ControlServer(tmp_path / "plugin", ["rail0"], name="12")
    denied = {"ok": False, "error": {"code": "denied", "message": "no"}}
    monkeypatch.setattr(hostile, "_change", lambda request: denied)
    hostile.avoided["rail0"] = job.avoided["rail0"] = True
    try:
        with agent_of(tmp_path) as agent:
            agent.intake.accept(DesiredState("h0", 1, "1", [RESTORE], 4e9))
            await agent.reconciler.reconcile()
            assert agent.results.latest[RESTORE.op_id].outcome == "refused"
            hostile.close()
            agent.host.surveyed_at = 0.0  # the next survey is due
            await agent.reconciler.reconcile()
            assert (agent.results.unreported[RESTORE.op_id].outcome, job.avoided["rail0"]) == (
                "applied",
                False,
            )
    finally:
        job.close()
        hostile.close()


async def test_a_flap_is_reported_until_a_report_has_arrived(tmp_path, monkeypatch):
    """The link was down between two readings; the report that said so found no receiver."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr("fabricpulse.remediation.node.reporter.RETRY_S", 0.001)
    found = iter(("unhealthy", "healthy", "healthy"))
    sent: list[str] = []

    class Receiver:
        async def report(self, report: Report) -> None:
            sent.append(report.health["rail0"])
            if len(sent) == 1:
                raise ReceiverError("503")
            if len(sent) == 3:
                raise asyncio.CancelledError
            agent.results.is_new.set()

    with agent_of(tmp_path) as agent:
        monkeypatch.setattr(agent.host, "health", lambda _desired: {"rail0": next(found)})
        with pytest.raises(asyncio.CancelledError):
            await agent.reporter.report_forever(Receiver())
    assert sent == ["unhealthy", "unhealthy", "healthy"]


@pytest.mark.parametrize(
    "answer", [{}, {"devices": 7}, {"devices": [7, {}, {"device": 3}, {"device": None}]}]
)
def test_nonsense_from_a_process_is_no_nic(answer):
    """A process that answers rubbish is not acted on."""
    assert nics_of(answer) == {}
    assert traffic_outcome(Survey({"1": answer}), Survey({"1": answer}), "rail0") == "idle"


def test_journal_keeps_the_newest_and_never_goes_back(tmp_path):
    """The high-water mark of generations and epochs survives."""
    journal = NodeJournal(tmp_path / "n.db")
    journal.accept(5, [AVOID, DesiredNic("rail1", "avoid", 7, "op-7")], 0.0)
    journal.accept(6, [RESTORE], 0.0)
    journal.accept(6, [DesiredNic("rail0", "avoid", 9, "op-9")], 0.0)
    journal.close()
    again = NodeJournal(tmp_path / "n.db")
    assert again.epoch() == 6
    assert again.desired() == {"rail0": RESTORE, "rail1": DesiredNic("rail1", "avoid", 7, "op-7")}
    again.close()


def test_only_its_owner_reads_the_journal(tmp_path):
    """Whatever the umask, and whatever an older version or a crash has left; it was readable for everybody."""
    path = tmp_path / "n.db"
    old = sqlite3.connect(path)
    old.execute("PRAGMA journal_mode=WAL")
    old.execute("CREATE TABLE other (x)")
    for left in tmp_path.iterdir():
        left.chmod(0o644)
    journal = NodeJournal(path)
    journal.accept(5, [AVOID], 0.0)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == dict.fromkeys(
        ("n.db", "n.db-wal", "n.db-shm"), 0o600
    )
    journal.close()
    old.close()


def test_nics_of_the_mesh():
    """Read from its exposition; what is not one says nothing."""
    text = (
        "# TYPE fabricpulse_nic_connected gauge\n"
        'fabricpulse_nic_connected{device="rail0",network="rail0"} 1\n'
        'fabricpulse_nic_connected{device="rail1",network="rail1"} 0\n'
        'fabricpulse_nic_disconnects_total{device="rail1"} 5\n'
    )
    assert parse_mesh(text) == MeshNics({"rail0": True, "rail1": False}, {"rail1": 5.0})
    assert parse_mesh("fabricpulse_nic_connected{{{") == MeshNics()
    flood = "\n".join(f'fabricpulse_nic_connected{{device="d{i}"}} 1' for i in range(10_000))
    assert len(parse_mesh(flood).connected) == 256


async def test_lanes_of_a_hostile_file_do_not_make_a_report_too_large(tmp_path, monkeypatch):
    """The receiver would refuse it, and each one after it."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    text = "\x01" * 128
    lane = LaneSample("1", "f" * 16, 1, text, text[:32], 1, 1, 1e15 / 3, 1e15 / 3, 1e6, 2**53, 2**53)

    class Receiver:
        async def report(self, report: Report) -> None:
            assert len(msgspec.json.encode(report)) <= MAX_REPORT_BYTES
            assert report.lanes
            raise asyncio.CancelledError

    with agent_of(tmp_path) as agent:
        agent.intake.report_lanes = True
        monkeypatch.setattr(agent.reporter.lanes, "sample", lambda: [lane] * 1024)
        with pytest.raises(asyncio.CancelledError):
            await agent.reporter.report_forever(Receiver())


async def test_a_result_that_was_lost_with_the_agent_is_reported_as_refused(tmp_path, monkeypatch):
    """The agent died before its report; then the job came back with this NIC alone. The receiver waited for ever."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    server = ControlServer(tmp_path / "plugin", ["rail0", "rail1"])
    with agent_of(tmp_path) as agent:
        agent.reconciler.tasks = NoTasks()
        agent.intake.accept(DesiredState("h0", 1, "1", [AVOID], 4e9))
        await agent.reconciler.reconcile()
        assert agent.results.unreported[AVOID.op_id].outcome == "applied"
    server.close()
    server = ControlServer(tmp_path / "plugin", ["rail0"], name="4242")
    try:
        with agent_of(tmp_path) as agent:
            for _ in range(3):
                await agent.reconciler.reconcile()
            assert (agent.results.unreported[AVOID.op_id].outcome, server.avoided) == (
                "refused",
                {"rail0": False},
            )
    finally:
        server.close()
