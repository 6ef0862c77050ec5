"""Leaving a host: people first, few at a time, notified before it is done, and never undone by itself."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fixtures.waiting import wait_for
from tests.unit.remediation.world import World, alert, config

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.remediation.receiver.config import DrainConfig, ReceiverConfig
from fabricpulse.remediation.receiver.drain_hooks import run_command
from fabricpulse.remediation.receiver.drains import Order, arguments_of
from fabricpulse.remediation.receiver.policy import advice, policy_of
from fabricpulse.remediation.receiver.state.model import Drain
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase
from fabricpulse.remediation.receiver.store.store import Batch

TEXT = """
rules: [{{alert: FabricHostFaulty, action: host.drain{mode}}}]
drain:
  command: [/usr/bin/scontrol, update, "NodeName={{host}}", State=DRAIN, "Reason={{reason}}"]
  undo: [/usr/bin/scontrol, update, "NodeName={{host}}", State=RESUME]
  grace_s: 60
{more}
guards: {{settle_s: 5}}
"""


class Hosts(World):
    """A world of rules that drain."""

    def __init__(self, mode: str = ", mode: auto", more: str = "", hosts: int = 4) -> None:
        super().__init__(config(TEXT.format(mode=mode, more=more)), hosts)

    def reconcile(self) -> None:
        self.run(lambda t: self.reconciler.decisions.reconcile(t, self.now))
        self.run(lambda t: self.reconciler.drains.reconcile(t, self.now))

    def fire(self, host: str = "h0", firing: bool = True) -> None:
        self.deliver(alert(host, name="FabricHostFaulty", firing=firing, starts_at=self.now))

    def set_undo(self, undo: tuple[str, ...]) -> None:
        """A reload."""
        self._set_drain(replace(self.config.drain, undo=undo))

    def set_command(self, command: tuple[str, ...]) -> None:
        """A reload."""
        self._set_drain(replace(self.config.drain, command=command))

    def _set_drain(self, drain: DrainConfig) -> None:
        self.config = replace(self.config, drain=drain)
        self.reconciler.set_policy(self.config, {})

    def orders(self) -> list[Order]:
        return self.reconciler.drains.orders(Transaction(self.state), self.now)

    def answer(self, message: str = "") -> None:
        """The command of the first order ends."""
        order = self.orders()[0]
        self.run(lambda t: self.reconciler.drains.on_result(t, order, message, self.now))
        self.reconcile()

    def drain(self, host: str = "h0") -> Drain:
        return [drain for drain in self.state.drains.values() if drain.host == host][-1]

    def approve(self, plan: str) -> bool:
        return bool(self.run(lambda t: self.reconciler.operator.approve(t, plan, "ada", self.now)))

    def release_host(self, host: str = "h0") -> bool:
        return bool(self.run(lambda t: self.reconciler.operator.release_host(t, host, "ada", self.now)))

    def details(self, event: str) -> list[dict[str, Any]]:
        return [line.detail for line in self.lines if line.event == event]


def test_from_alert_to_return():
    """Settled, handed off, a minute of grace, drained by the command; its end changes nothing; back when released."""
    world = Hosts()
    world.fire()
    assert world.state.drains == {}, "it settles first"
    world.tick(6)
    assert (world.drain().phase, world.orders()) == ("leaving", [])
    assert world.details("hand_off")[0]["drains_at"] == pytest.approx(world.now + 60)
    world.tick(61)
    (order,) = world.orders()
    assert order.arguments == (
        "/usr/bin/scontrol", "update", "NodeName=h0", "State=DRAIN",
        "Reason=fabricpulse: FabricHostFaulty is firing",
    )  # fmt: skip
    world.answer()
    assert (world.drain().phase, world.orders()) == ("drained", [])
    world.fire(firing=False)
    world.tick(3_600)
    assert world.drain().phase == "drained", "nothing here can tell that it was repaired"
    assert world.release_host()
    (order,) = world.orders()
    assert order.arguments[-1] == "State=RESUME"
    world.answer()
    assert world.drain().phase == "returned"
    assert not world.release_host()
    events = [e for e in world.events() if e.startswith(("hand", "host", "drain", "rel"))]
    assert events == ["hand_off", "host.drain", "drain_drained", "released", "host.return", "drain_returned"]


def test_by_default_people_approve():
    """Without a mode nothing is notified or done before the plan is approved by its hash."""
    world = Hosts(mode="")
    world.fire()
    world.tick(10)
    assert (world.drain().phase, world.details("hand_off")) == ("awaiting_approval", [])
    assert not world.approve("0" * 16)
    assert world.approve(world.drain().hash)
    assert not world.approve(world.drain().hash), "once is enough"
    world.tick(1)
    assert world.details("hand_off")[0]["owner"] == "ada"


def test_a_plan_goes_with_its_alert():
    """Unapproved, and of no use any more; the next alert makes another plan at once."""
    world = Hosts(mode="")
    world.fire()
    world.tick(10)
    first = world.drain()
    world.fire(firing=False)
    assert world.drain().phase == "dropped"
    world.tick(60)
    world.fire()
    world.tick(10)
    assert world.drain().phase == "awaiting_approval"
    assert world.drain().hash != first.hash
    assert not world.approve(first.hash)


def test_an_approval_waits_for_the_guards_and_ends():
    """Approved while paused, it is not carried out; after 15 minutes it must be approved anew."""
    world = Hosts(mode="")
    world.fire()
    world.tick(10)
    assert world.approve(world.drain().hash)
    world.pause("look", "bob")
    world.tick(1000)
    assert (world.drain().phase, world.drain().blocked) == ("awaiting_approval", "paused")
    world.resume("bob")
    world.tick(10)
    assert world.drain().phase == "awaiting_approval"
    assert world.approve(world.drain().hash)
    world.tick(1)
    assert world.drain().phase == "leaving"


@pytest.mark.parametrize(("mode", "event"), [("observe", ""), ("dry_run", "would_drain")])
def test_modes_that_change_nothing(mode, event):
    """No hand-off, no command; dry_run says once an episode what it would do."""
    world = Hosts(mode=f", mode: {mode}")
    world.fire()
    world.tick(300)
    assert world.orders() == world.details("hand_off") == []
    assert world.events().count("would_drain") == bool(event)


def test_one_host_at_a_time_and_few_a_day():
    """The second one waits until the first is back, said once; the third one of a day waits as well."""
    world = Hosts(more="  hosts_per_day: 2", hosts=4)
    for host in ("h0", "h1", "h2"):
        world.fire(host)
        world.tick(90)
    assert [d.host for d in world.state.drains.values()] == ["h0"]
    assert [d["reason"] for d in world.details("blocked")] == ["budget", "budget"]
    world.answer()
    world.fire("h0", firing=False)
    world.release_host()
    world.answer()
    world.tick(1)
    assert world.drain("h1").phase == "leaving"
    world.tick(61)
    world.answer()
    world.release_host("h1")
    world.answer()
    world.fire("h1", firing=False)
    world.tick(60)
    assert world.details("blocked")[-1]["reason"] == "rate"
    assert {d.host for d in world.state.drains.values()} == {"h0", "h1"}


def test_a_leaf_is_no_host():
    """Four hosts at once have a cause of their own: none is left, however long it lasts."""
    world = Hosts(hosts=8)
    for host in world.hosts[:4]:
        world.fire(host)
    world.tick(600)
    assert world.state.drains == {}
    assert {d["reason"] for d in world.details("blocked")} == {"shared_cause"}


def test_it_ends_within_the_grace():
    """The alert ends before the command: the host stays, and whoever was notified is notified of that."""
    world = Hosts()
    world.fire()
    world.tick(10)
    world.fire(firing=False)
    world.tick(120)
    assert (world.drain().phase, world.orders()) == ("dropped", [])
    assert "drain_dropped" in world.events()


def test_hand_offs_are_few_though_alerts_end_at_once():
    """Each moves jobs away, so hosts_per_day and cooldown_s count it: alerts that end within the grace had forty hosts
    handed off in 45 minutes. What an operator has not approved counts for nothing."""
    world = Hosts(hosts=12)
    for host in world.hosts:
        world.fire(host)
        world.tick(7)
        world.fire(host, firing=False)
        world.tick(120)
    assert [line.subject for line in world.lines if line.event == "hand_off"] == ["h0", "h1", "h2"]
    assert {d["reason"] for d in world.details("blocked")} == {"rate"}
    world = Hosts(hosts=4)
    for _ in range(20):
        world.fire()
        world.tick(7)
        world.fire(firing=False)
        world.tick(120)
    assert world.events().count("hand_off") == 1
    assert {d["reason"] for d in world.details("blocked")} == {"cooldown"}
    world.tick(3600)
    world.fire()
    world.tick(7)
    assert world.events().count("hand_off") == 2
    world = Hosts(mode="", hosts=4)
    for host in ("h0", "h1", "h2", "h0"):
        world.fire(host)
        world.tick(7)
        assert world.drain(host).phase == "awaiting_approval"
        world.fire(host, firing=False)
        world.tick(120)


def test_what_counts_is_not_forgotten():
    """More drains that ended without a hand-off than are remembered: those of the day with one stay."""
    world = Hosts(more="  hosts_per_day: 1", hosts=4)
    world.fire()
    world.tick(7)
    world.fire(firing=False)
    world.tick(60)
    planned = replace(world.drain(), handed_off_at=0.0)
    for number in range(300):
        later = replace(planned, id=f"h9#{number}", host="h9", changed_at=world.now + number)
        world.run(lambda t, later=later: t.put_drain(later))
    world.fire("h1")
    world.tick(10)
    assert len(world.state.drains) <= 201
    assert world.details("blocked")[-1]["reason"] == "rate"


def test_the_kill_switch_stops_a_drain_under_way():
    """Paused within the grace, and between two tries of the command."""
    world = Hosts()
    world.fire()
    world.tick(10)
    world.pause("look", "bob")
    world.tick(300)
    assert world.drain().phase == "leaving"
    world.resume("bob")
    world.tick(1)
    assert len(world.orders()) == 1
    world.pause("look", "bob")
    assert world.orders() == []


def test_a_command_that_fails_is_tried_again_and_given_up():
    """Three tries, 30 s and 60 s apart; then the host counts as out, since nobody knows what the command has done."""
    world = Hosts()
    world.fire()
    world.tick(70)
    stale = world.orders()[0]
    world.answer("exit code 1: no such node")
    assert world.orders() == []
    world.run(lambda t: world.reconciler.drains.on_result(t, stale, "", world.now))
    assert world.drain().phase == "draining", "the result of an older try says nothing"
    world.tick(31)
    world.answer("exit code 1: no such node")
    world.tick(61)
    world.answer("exit code 1: no such node")
    assert (world.drain().phase, world.drain().message) == ("failed", "exit code 1: no such node")
    world.fire("h1")
    world.tick(60)
    assert world.details("blocked")[-1]["reason"] == "budget"
    assert world.release_host()
    assert world.orders()[0].arguments[-1] == "State=RESUME"


def test_a_release_while_the_command_runs_brings_the_host_back():
    """The end of the drain command is not that of the undo, which runs afterwards: the host stayed drained in the
    scheduler, and the journal said that it was back."""
    world = Hosts()
    world.fire()
    world.tick(70)
    (under_way,) = world.orders()
    assert world.release_host()
    world.run(lambda t: world.reconciler.drains.on_result(t, under_way, "", world.now))
    assert world.drain().phase == "returning"
    assert world.orders()[0].arguments[-1] == "State=RESUME"
    world.run(lambda t: world.reconciler.drains.on_result(t, under_way, "exit code 1", world.now))
    assert world.drain().tries == 0, "nor is its failure"
    world.answer()
    assert world.drain().phase == "returned"


def test_without_undo_the_end_says_what_is_left_to_do():
    """A command and no undo: check notes it, and so does the line of the return."""
    world = Hosts()
    world.set_undo(())
    assert any("stays drained" in line for line in advice(policy_of(world.config)))
    world.fire()
    world.tick(70)
    world.answer()
    assert world.release_host()
    assert world.drain().phase == "returned"
    assert "by hand" in world.details("drain_returned")[0]["message"]


def test_a_reload_that_takes_commands_away_leaves_no_host_behind():
    """Between its command and undo, a host whose undo is gone is failed, and an operator ends that."""
    world = Hosts()
    world.fire()
    world.tick(70)
    world.answer()
    assert world.release_host()
    world.set_undo(())
    world.tick(1)
    assert world.drain().phase == "failed"
    assert world.release_host()
    assert world.drain().phase == "returned"
    world = Hosts()
    world.fire()
    world.tick(70)
    world.set_command(())
    world.tick(1)
    assert world.drain().phase == "failed"
    assert world.release_host()
    assert world.orders()[0].arguments[-1] == "State=RESUME"


def test_without_a_command_it_is_notified_and_nothing_else():
    """For trainers that leave by themselves: hand_off, then it counts as left."""
    world = World(
        config("rules: [{alert: FabricHostFaulty, action: host.drain, mode: auto}]\nguards: {settle_s: 0}\n")
    )
    world.__class__ = Hosts
    assert isinstance(world, Hosts)
    world.fire()
    world.tick(61)
    assert (world.drain().phase, world.orders()) == ("drained", [])
    assert world.release_host()
    assert world.drain().phase == "returned"


def test_a_nic_rule_does_not_act_on_it():
    """An alert of a host has no NIC: nothing is taken out of jobs for it."""
    world = Hosts()
    world.fire()
    world.tick(60)
    assert world.state.actions == world.state.targets == {}


@pytest.mark.parametrize(
    "host", ["-x", "a b", "../h", "h;reboot\n", "", "h[0-99]", "h0,h1", "ALL", "all", "h*", "h0{1}"]
)
def test_hosts_that_are_no_names(host):
    """They never become an argument of a command."""
    world = Hosts()
    world.deliver(alert(host, name="FabricHostFaulty"))
    assert world.state.episodes == {}


def test_arguments_stay_arguments():
    """A text with a placeholder, blanks or a shell's characters in it is filled in once, and is one argument."""
    drain = Drain(
        id="h0#1", host="h0", alert="a", reason="{host} $(reboot); 'x", phase="draining", created_at=0, changed_at=0
    )  # fmt: skip
    assert arguments_of(("p", "{host}", "r={reason}"), drain) == (
        "p",
        "h0",
        "r=fabricpulse: {host} $(reboot); 'x",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("drain: {command: [/bin/x]}", "does not name {host}"),
        ('drain: {command: [scontrol, "{host}"]}', "absolute path"),
        ("rules: [{alert: a, action: host.destroy}]", "action"),
    ],
)
def test_configuration(text, sentence):
    """A command that would drain nothing, or is looked up in whatever PATH there is, is refused."""
    with pytest.raises(ConfigError, match=sentence):
        parse_config(text, ReceiverConfig, "test")


def test_a_drain_survives_a_restart(tmp_path):
    """Its row is part of the journal, and of the seal."""
    world = Hosts()
    world.fire()
    world.tick(10)
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    transaction = Transaction(store.load())
    transaction.put_drain(world.drain())
    store.commit(Batch(transaction, 3.0))
    store.close()
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    assert store.load().drains == {world.drain().id: world.drain()}
    assert store.edited == ""
    store.close()


async def test_commands_are_real(tmp_path: Path) -> None:
    """Exit code 0 is nothing to say; else the code and the end of what it said, printable and bounded."""
    assert await run_command(("/bin/sh", "-c", "exit 0"), 30) == ""
    said = await run_command(("/bin/sh", "-c", r"printf 'no\033[2J such node' >&2; exit 3"), 30)
    assert said == "exit code 3: no\\x1b[2J such node"
    flood = await run_command((sys.executable, "-c", "print('x' * 1000000); raise SystemExit(1)"), 30)
    assert len(flood) <= 500
    assert "cannot run" in await run_command((str(tmp_path / "none"), "h0"), 30)


async def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """After its time, and when the receiver stops: its whole group is gone."""
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid}; wait"
    assert "no end after" in await run_command(("/bin/sh", "-c", script), 0.3)
    wait_for(lambda: _is_gone(int(pid.read_text())), 30, "its child is gone")
    pid.unlink()
    task = asyncio.create_task(run_command(("/bin/sh", "-c", script), 600))
    await asyncio.to_thread(wait_for, lambda: pid.exists() and pid.read_text() != "", 30, "the child")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_for(lambda: _is_gone(int(pid.read_text())), 30, "its child is gone")


async def test_a_stop_while_a_command_starts_ends_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver stops when the program runs already and asyncio is not done with starting it."""
    runs, go_on = asyncio.Event(), asyncio.Event()
    create = asyncio.create_subprocess_exec

    async def slow_to_start(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*arguments, **options)
        runs.set()
        await go_on.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow_to_start)
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid}; wait"
    task = asyncio.create_task(run_command(("/bin/sh", "-c", script), 600))
    await runs.wait()
    await asyncio.to_thread(wait_for, lambda: pid.exists() and pid.read_text() != "", 30, "the child")
    task.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_for(lambda: _is_gone(int(pid.read_text())), 30, "its child is gone")


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
