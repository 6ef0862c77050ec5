"""A host whose agent or plugin says what is not so: it harms itself at most, and fills neither memory nor journal."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.remediation.protocol import MAX_LANES, MAX_NICS, LaneSample, Report
from fabricpulse.remediation.receiver.health import problems
from fabricpulse.remediation.receiver.payload import Alert, PayloadError, parse_notification, parse_polled
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneEvidence
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state import retention
from fabricpulse.remediation.receiver.state.model import Held, Target
from fabricpulse.remediation.receiver.web.agent_api import _with_printable_names
from fabricpulse.remediation.receiver.web.host_lines import BURST, HostLines
from fabricpulse.remediation.receiver.web.operator_api import OperatorApi


def test_made_up_nics_that_a_host_holds_are_bounded():
    """Each report with 256 others: a target was made of each, for ever."""
    world = World(hosts=1)
    for turn in (0, 0, 1, 1):  # the first of the same is not believed
        world.report(["h0"], held={f"nic{turn}-{i}": Held("avoid", 10**12) for i in range(MAX_NICS)})
    assert len(world.state.targets) == MAX_NICS
    for _ in range(2):
        world.report(["h1"], held={"rail0": Held("avoid", 10**12)})
    assert world.phase("h1/rail0") == "avoided", "another host has its own room"


def test_one_report_takes_no_nic_out_of_another_host():
    """Where anybody can report for a host: its alert was not acted on, as the NIC was out already. Said twice in a row
    it is believed, until the host itself says otherwise."""
    world = World(hosts=1)
    forged = {"rail0": Held("avoid", 2**52)}
    world.report(["h0"], held=forged)
    assert world.state.targets == {}
    world.report(["h0"], held=forged)
    assert world.phase() == "avoided"
    world.report(devices=dict.fromkeys(world.devices, True))
    assert (world.state.targets, world.lines[-1].event) == ({}, "disowned")
    world.deliver(alert())
    assert [action.target.key for action in world.pending()] == ["h0/rail0"]


def forge_newer(world: World) -> int:
    """A decision, and two reports that say that a newer one has put the NIC back; its generation."""
    world.deliver(alert())
    (action,) = world.pending()
    for _ in range(2):
        world.report(["h0"], held={"rail0": Held("in_service", action.generation + 1000)})
    return action.generation


def test_a_forged_newer_generation_stops_no_receiver():
    """Its target was dropped from under an operation that was under way, and every cycle failed from then on."""
    world = World(hosts=1)
    generation = forge_newer(world)
    assert [action.outcome for action in world.state.actions.values()] == ["superseded"]
    world.report(held={})
    world.deliver(alert(firing=False))
    world.now += 3600
    world.report()
    world.deliver(alert(starts_at=world.now))
    (again,) = world.pending()
    assert again.generation > generation


def test_a_journal_with_an_operation_of_no_target_is_read():
    """One was written: the receiver was stuck after each start."""
    world = World(hosts=1)
    world.deliver(alert())
    world.run(lambda t: t.drop("targets", ["h0/rail0"]))
    world.restart()
    world.report()
    world.now += 61
    world.report()
    world.reconcile()
    assert [(a.outcome, a.target.key) for a in world.pending()] == [("pending", "h0/rail0")]
    assert "superseded" in [action.outcome for action in world.state.actions.values()]


def test_forged_generations_erase_no_history():
    """Cooldown, attempts and the limit of failovers began anew, and with them the NIC flapped as often as it liked."""
    world = World(hosts=1)
    generation = forge_newer(world)
    for _ in range(2):
        world.report(held={})
        world.reconcile()
    target = world.state.targets["h0/rail0"]
    assert (target.phase, len(target.failovers), len(target.attempts)) == ("in_service", 1, 1)
    assert (world.pending(), world.events().count("disowned")) == ([], 1)
    for _ in range(2):
        world.report(held={"rail0": Held("avoid", generation)})
    world.now += 86_401
    world.reconcile()
    assert world.state.agents == {}
    target = world.state.targets["h0/rail0"]
    assert (target.phase, target.generation, len(target.failovers)) == ("avoided", generation, 1)


def test_a_nic_that_jobs_do_not_use_stays_out_without_its_agents_journal():
    """Both journals are lost, one after the other: it is held, and put back in the end."""
    world = World(hosts=1)
    world.held["h0/rail0"] = Held("avoid", 10**12)
    world.restart()
    world.report()
    world.held.clear()
    world.tick(0)
    assert world.phase() == "avoided"
    world.tick(11)
    assert [action.action for action in world.pending()] == ["nic.restore"]


def test_hosts_that_are_gone_leave_nothing_behind(monkeypatch):
    """Twenty thousand NICs of hosts that nobody has, adopted from forged reports, were there a month later."""
    monkeypatch.setattr(retention, "_MOST_ADOPTED", 300)
    world = World(hosts=1)
    held = {f"nic{i}": Held("avoid", 10**12) for i in range(MAX_NICS)}
    world.report(["made-up0", "made-up1"], held=held, source="10.0.0.66")
    assert len(world.state.targets) == 300
    world.now += 86_401
    world.tick()
    assert world.state.targets == {}
    held = {device: Held("avoid", 2**52) for device in held}
    world.report(["made-up2"], held=held)
    world.tick(60)
    assert world.blocked("made-up2/nic0") == "not_observed"
    world.deliver(alert())
    world.settle()
    world.restart()
    world.now += 86_431
    world.tick()
    assert list(world.state.targets) == ["h0/rail0"]


def test_one_address_leaves_room_to_adopt(monkeypatch):
    """Sixteen forged reports took all of it without a word: NICs that are out were not known as such."""
    monkeypatch.setattr(retention, "_MOST_ADOPTED", 3)
    monkeypatch.setattr(retention, "_MOST_OF_AN_ADDRESS", 2)
    world = World(hosts=0)

    def adopt(host: str, count: int, source: str) -> str:
        held = {f"rail{i}": Held("avoid", 2**52) for i in range(count)}
        for _ in range(2):
            world.report([host], held=held, source=source)
        found = problems(world.config, world.state, world.now, "")
        return next((problem.message for problem in found if problem.code == "adoption_full"), "")

    assert adopt("sure", 3, "") == "", "who has an identity takes nobody's room"
    assert adopt("made-up0", 1, "10.0.0.66") == ""
    assert "at 10.0.0.66 " in adopt("made-up1", 2, "10.0.0.66")
    assert "without an identity" in adopt("h0", 2, "10.0.0.1")
    assert sorted(world.state.targets) == [
        *("h0/rail0", "made-up0/rail0", "made-up1/rail0"),
        *("sure/rail0", "sure/rail1", "sure/rail2"),
    ]


def test_generations_of_a_clock_that_was_ahead_are_not_forgotten():
    """What its agent holds is newer than the clock: a decision made without it would be refused as an old one."""
    world = World(hosts=1)
    world.now += 400 * 86_400
    world.report()
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    world.run(lambda t: world.reconciler.operator.release(t, Target("h0", "rail0"), "ada", world.now))
    (back,) = world.settle()
    world.now -= 400 * 86_400
    world.restart()
    world.now += 86_431
    world.reconcile()
    assert world.state.targets["h0/rail0"].generation == back.generation
    world.run(lambda t: t.drop("targets", ["h0/rail0"]))
    world.report()
    world.report()
    assert (world.phase(), world.state.targets["h0/rail0"].generation) == ("in_service", back.generation)


def test_what_a_host_holds_are_names_and_members():
    """A name with a slash, or a character that moves a cursor, is none; with a membership file nothing else is."""
    world = World(hosts=1)
    for _ in range(2):
        world.report(["h0"], held={name: Held("avoid", 10**12) for name in ("a/b", "a\0b", "\x1b[2J", " ")})
    assert world.state.targets == {}
    world.reconciler = Reconciler(world.config, {"h0": frozenset({"rail0"})})
    for _ in range(2):
        world.report(["h0"], held={name: Held("avoid", 10**12) for name in ("rail0", "rail7")})
    assert list(world.state.targets) == ["h0/rail0"]


def test_the_journal_has_room_for_so_many_lines_of_a_host():
    """A burst, then a line a second; the others have theirs."""
    lines = HostLines()
    assert all(lines.take("h0", 10, START) for _ in range(BURST // 10))
    assert not lines.take("h0", 1, START)
    assert lines.take("h0", 0, START), "a report without news is always taken"
    assert lines.take("h1", BURST, START)
    assert lines.take("h0", 60, START + 60)
    assert not lines.take("h0", 1, START + 60)
    assert lines.take("h0", BURST, START + 60 + BURST)


def sample(lane: int, process: str = "7", workload: str = "job") -> LaneSample:
    return LaneSample(process, f"{lane:016x}", 0, workload, "rail0", 40_000, 1, 1e6, 1e6, 1e-4, 0, 0)


def test_one_host_does_not_take_the_room_of_all_lanes():
    """Ever new connections of one host pushed everybody out after a hundred reports."""
    evidence = LaneEvidence()
    for turn in range(120):
        evidence.add(
            "h-made-up", [sample(i) for i in range(turn * MAX_LANES, (turn + 1) * MAX_LANES)], START + turn
        )
    for turn in range(3):
        evidence.add("h1", [sample(1)], START + 120 + 2 * turn)
    found = evidence.summaries(START + 120, START + 124)
    assert [key for key in found if key.startswith("h1/")] == [f"h1/7/{1:016x}/0"]
    assert len(evidence._lanes) == 2 * MAX_LANES + 1
    assert evidence.count == sum(map(len, evidence._lanes.values()))


def test_names_of_jobs_are_text():
    """They become subjects of the journal. PostgreSQL cannot keep a NUL, so that an honest journal looked edited."""
    report = Report(workloads=["a\0b", "c"], lanes=[sample(1, workload="x\x1b[2J" * 30)])
    cleaned = _with_printable_names(report)
    assert cleaned.workloads == ["a\\x00b", "c"]
    assert cleaned.lanes[0].workload.isprintable()
    assert msgspec.json.decode(msgspec.json.encode(cleaned), type=Report) == cleaned
    plain = Report(workloads=["c"], lanes=[sample(1)])
    assert _with_printable_names(plain) is plain


@pytest.mark.parametrize("fingerprint", ["", "f" * 65, "a\0b", "a\nb"])
def test_a_fingerprint_that_is_no_key_is_refused(fingerprint):
    """In a webhook it is a dead letter, in a poll it is passed over."""
    alert_ = {
        "status": "firing",
        "labels": {"alertname": "A"},
        "fingerprint": fingerprint,
        "startsAt": "2026-01-01T00:00:00Z",
    }
    body = msgspec.json.encode({"version": "4", "alerts": [alert_, alert_ | {"fingerprint": "good"}]})
    notification = parse_notification(body)
    assert [a.fingerprint for a in notification.alerts] == ["good"]
    assert len(notification.dead_letters) == 1
    assert parse_polled(msgspec.json.encode([alert_ | {"status": {"state": "active"}}])) == ()
    with pytest.raises(PayloadError):
        parse_polled(b"{}")


def test_an_alertmanager_that_answers_with_nonsense_fills_no_memory():
    """Each value takes 70 bytes, however short it is: an answer is refused before it is decoded, like a webhook."""
    with pytest.raises(PayloadError, match="values in one body"):
        parse_polled(b"[" + b"0," * 4_000_001 + b"0]")
    labels = {"alertname": "A", "x": "y" * 4097}
    polled = {
        "labels": labels,
        "fingerprint": "f",
        "startsAt": "2026-01-01T00:00:00Z",
        "status": {"state": "active"},
    }
    assert parse_polled(msgspec.json.encode([polled])) == ()


def test_names_of_labels_are_bounded_like_their_values():
    """They are notified and stay in the journal: one of 64 MiB did."""
    alert_ = {
        "status": "firing",
        "labels": {"alertname": "A", "n" * 4097: ""},
        "fingerprint": "f",
        "startsAt": "2026-01-01T00:00:00Z",
    }
    notification = parse_notification(msgspec.json.encode({"version": "4", "alerts": [alert_]}))
    assert (notification.alerts, len(notification.dead_letters)) == ((), 1)
    world = World(config("rules: [{alert: A, action: notify}]\n"))
    world.deliver(Alert(True, "f", START, {"alertname": "A", "n" * 4096: "v" * 4096}))
    assert world.lines[-1].detail["labels"] == {"alertname": "A", "n" * 200: "v" * 200}


def test_nics_that_membership_does_not_have_count_for_nothing():
    """A process that names forty NICs made room for ten of the four real ones to leave."""
    rails = [f"rail{i}" for i in range(4)]
    world = World(config("rules: [{alert: FabricNicFlapping, mode: auto}]\n"), hosts=1, nics=4)
    world.reconciler = Reconciler(world.config, {"h0": frozenset(rails)})
    world.devices = [*rails, *(f"fake{i}" for i in range(40))]
    world.report()
    world.deliver(alert(device="rail0"))
    world.settle()
    world.deliver(alert(device="rail1"))
    assert (world.pending(), world.blocked("h0/rail1")) == ([], "capacity")


async def test_readers_leave_threads_for_commits():
    """Whoever may read could hold all threads with one long check of the journal each: commits and leases waited."""
    api, running, most = OperatorApi(None, None, None, lambda: ""), 0, 0
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        running -= 1

    readers = [asyncio.create_task(api._read(slow)) for _ in range(40)]
    quick: Callable[[], Any] = list
    assert await asyncio.wait_for(asyncio.to_thread(quick), 30) == []
    release.set()
    await asyncio.gather(*readers)
    assert most <= 2
