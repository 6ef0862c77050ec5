"""What the receiver takes: deliveries a second on a real disk, one huge body, and how long until a process has acted.

Each case runs the daemon as it is installed, over HTTP, with synchronous=FULL. Gates are the goals of the design; one
that is missed ends with exit code 1.
"""

import argparse
import concurrent.futures
import http.client
import json
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.remediation_rebalance import rebalance
from tests.bench.remediation_simulated import guards, lanes
from tests.bench.rows import Rows, quantile, thread_seconds
from tests.fixtures.remediation_attacks import ATTACKS, OPERATOR, TOKEN, start_with_credentials
from tests.fixtures.remediation_fuzz import Told, post_mutants
from tests.fixtures.remediation_kills import kill_again_and_again
from tests.fixtures.remediation_stack import Stack, alert, kill, request, webhook
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

rows = Rows("remediation")


def sender(port: int, body: bytes, end: float) -> list[float]:
    """One connection that posts until `end`; the seconds of each accepted delivery."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    took = []
    while time.monotonic() < end:
        begun = time.monotonic()
        connection.request("POST", "/api/v1/alertmanager", body)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        took.append(time.monotonic() - begun)
    connection.close()
    return took


def alerts(count: int) -> list[dict[str, Any]]:
    """Alerts of different NICs."""
    return [alert(f"host{i // 8:05d}", f"rail{i % 8}") for i in range(count)]


def throughput(stack: Stack, seconds: float, connections: int) -> None:
    """Deliveries of one and of ten alerts, from several connections at once; every one accepted is in the journal."""
    for size in (1, 10):
        body = json.dumps(webhook(*alerts(size))).encode()
        before = stack.metric('fabricpulse_remediation_deliveries_total{code="200"}')
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(connections) as pool:
            futures = [
                pool.submit(sender, stack.receiver_port, body, begun + seconds) for _ in range(connections)
            ]
            took = sorted(t for future in futures for t in future.result())
        span = time.monotonic() - begun
        counted = stack.metric('fabricpulse_remediation_deliveries_total{code="200"}') - before
        case = f"{size} alerts, {connections} connections"
        rows.report(case, "deliveries", len(took) / span, "1/s", ">= 1000" if size == 10 else None)
        rows.report(case, "p50", quantile(took, 0.5), "s")
        rows.report(case, "p99", quantile(took, 0.99), "s", "<= 0.25")
        rows.report(case, "accepted_not_counted", abs(counted - len(took)), "1", "== 0")


def firing(stack: Stack, seconds: float, connections: int) -> None:
    """Deliveries of ten alerts while ever more NICs fire: their number must not slow deliveries down."""
    body = json.dumps(webhook(*alerts(10))).encode()
    for count in (160, 4_000, 50_000):
        status, text = stack.post(json.dumps(webhook(*alerts(count))).encode())
        assert status == 200, text
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(connections) as pool:
            futures = [
                pool.submit(sender, stack.receiver_port, body, begun + seconds) for _ in range(connections)
            ]
            took = sorted(t for future in futures for t in future.result())
        case = f"10 alerts, {count} NICs firing"
        rows.report(case, "deliveries", len(took) / (time.monotonic() - begun), "1/s", ">= 1000")
        rows.report(case, "p99", quantile(took, 0.99), "s", "<= 0.25")


def storm(stack: Stack) -> None:
    """One body of 10,000 alerts, and of 50,000."""
    for count, limit in ((10_000, 2.0), (50_000, 10.0)):
        body = json.dumps(webhook(*alerts(count))).encode()
        begun = time.monotonic()
        status, text = stack.post(body)
        took = time.monotonic() - begun
        assert status == 200, text
        rows.report(
            f"{count} alerts in one body ({len(body) / 1e6:.1f} MB)",
            "accepted_after",
            took,
            "s",
            f"<= {limit}",
        )
        rows.report(f"{count} alerts in one body ({len(body) / 1e6:.1f} MB)", "alerts", count / took, "1/s")
    begun = time.monotonic()
    stack.get("/api/v1/status")
    rows.report("after the storm", "status_answer", time.monotonic() - begun, "s", "<= 1")


def latency(stack: Stack, rounds: int) -> None:
    """From the webhook to the changed state in the process, and to the receiver's knowledge that it is so."""
    acted, verified = [], []
    for turn in range(rounds):
        start = f"2026-11-21T06:{turn // 60:02d}:{turn % 60:02d}Z"
        count = len(stack.effects())
        begun = time.monotonic()
        stack.post(webhook(alert(starts_at=start)))
        wait_for(partial(_more_effects, stack, count), 10, "acted")
        acted.append(time.monotonic() - begun)
        stack.wait_phase("avoided")
        action = [a for a in stack.actions() if a["action"] == "nic.avoid"][-1]
        verified.append(action["verified_at"] - action["received_at"])
        stack.post(webhook(alert(status="resolved", starts_at=start)))
        stack.wait_phase("in_service")
    rows.report("one alert", "webhook_to_process_p50", quantile(acted, 0.5), "s")
    rows.report("one alert", "webhook_to_process_max", max(acted), "s", "<= 0.5")
    rows.report("one alert", "webhook_to_verified_max", max(verified), "s", "<= 2")


def _more_effects(stack: Stack, than: int) -> bool:
    return len(stack.effects()) > than


def crash_loop(stack: Stack, rounds: int) -> None:
    """kill -9 of the receiver again and again: what was accepted and is not journaled, and how long it is away."""
    body = json.dumps(webhook(alert("nobody"))).encode()
    accepted, back = 0, []
    for _ in range(rounds):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            accepted += stack.post(body)[0] == 200
        kill(stack.receiver)
        begun = time.monotonic()
        stack.start_receiver()
        wait_for(lambda: stack.post(body)[0] == 200, 30, "accepts again")
        accepted += 1
        back.append(time.monotonic() - begun)
    exported = stack.folder / "export"
    exported.write_text(_get(stack, "/api/v1/export?deliveries=1"))
    journaled = sum('"kind":"delivery"' in line for line in exported.read_text().splitlines())
    rows.report(f"{rounds} kills", "accepted", accepted, "1")
    rows.report(f"{rounds} kills", "accepted_and_lost", max(0, accepted - journaled), "1", "== 0")
    rows.report(f"{rounds} kills", "back_after_max", max(back), "s")
    rows.report(
        f"{rounds} kills",
        "journal_intact",
        float(stack.get("/api/v1/verify")["intact"]),
        "1",
        "== 1",
    )


def under_attack(stack: Stack) -> None:
    """Webhook and kill switch during each attack of somebody without credentials: answered within 1 s, no effect.

    On a machine that does other work a slow answer says little; what the receiver's event loop did before it, in CPU
    time, says whether it was the receiver.
    """
    assert stack.receiver is not None
    pid = stack.receiver.pid
    for attack in ATTACKS:
        slowest, answered, asked, busy, waited = 0.0, 0, 0, 0.0, 0.0
        with attack(stack):
            for path, body, credentials in (
                ("/api/v1/alertmanager", webhook(alert("not-there")), {"token": TOKEN}),
                ("/api/v1/pause", {"reason": "attack", "owner": "bench"}, {"authorization": OPERATOR}),
            ):
                for _ in range(10):
                    begun, (ran_s, waited_s) = time.monotonic(), thread_seconds(pid)
                    asked += 1
                    with suppress(OSError):
                        answered += request(stack.url + path, body, timeout_s=10, **credentials)[0] == 200
                    slowest = max(slowest, time.monotonic() - begun)
                    now_ran_s, now_waited_s = thread_seconds(pid)
                    busy, waited = max(busy, now_ran_s - ran_s), max(waited, now_waited_s - waited_s)
        rows.report(attack.__name__, "under_attack_answered", answered / asked, "1", "== 1")
        rows.report(attack.__name__, "slowest_answer", slowest, "s", "<= 1", loop_waited_for_a_core_s=waited)
        rows.report(attack.__name__, "loop_cpu_before_an_answer_max", busy, "s", "<= 0.5")
        rows.report(attack.__name__, "under_attack_effects", len(stack.effects()), "1", "== 0")


def fuzz(stack: Stack, payloads: int, connections: int) -> None:
    """Mutants of webhooks and of agents' reports over HTTP: no 5xx, little memory, and no effect but those that an
    accepted webhook asks for by the name of host and NIC: it is shown beside them. Without a token there is none.
    """
    nic = {"rail0": True, "rail1": True}
    report = {
        "processes": 1,
        "devices": nic,
        "connected": nic,
        "health": {"rail0": "healthy", "rail1": "unhealthy"},
        "held": {"rail0": {"desired": "avoid", "generation": 12}},
        "results": [{"op_id": "h0/rail0#12", "outcome": "applied", "processes": 1, "traffic": "moved"}],
        "workloads": ["42"],
    }
    webhooks, agent = "/api/v1/alertmanager", (stack.folder / "agents.token").read_text()
    before, own = 0, "webhooks of the job's NICs"
    for name, path, body, token in (
        ("webhooks of the job's NICs, no token", webhooks, webhook(alert(), alert(device="rail1")), ""),
        ("reports", "/api/v1/agents/h9/report", report, agent),
        ("webhooks of others", webhooks, webhook(alert("a"), alert("b", "rail1", status="resolved")), TOKEN),
        # Effects that are right: the account of them must find the bodies that ask for them.
        (own, webhooks, webhook(alert(), alert("h00", "rail1")), TOKEN),
    ):
        seed, told, begun = json.dumps(body).encode(), Told(), time.monotonic()
        with concurrent.futures.ProcessPoolExecutor(connections) as pool:
            share = -(-payloads // connections)
            futures = [
                pool.submit(post_mutants, stack.receiver_port, path, seed, share, number, token)
                for number in range(connections)
            ]
            for future in futures:
                told.add(future.result())
        time.sleep(3)  # what was decided last is carried out, too
        effects = stack.effects()[before:]
        before += len(effects)
        statuses = {str(status): count for status, count in sorted(told.statuses.items())}
        case = f"{told.statuses.total()} mutants of {name}"
        rows.report(
            case, "fuzz_5xx", told.failures, "1", "== 0", statuses=statuses, took_s=time.monotonic() - begun
        )
        bodies = {device: told.bodies[nic] for nic in told.bodies for host, device in (nic,) if host == "h0"}
        asked_for = {effect[2]: bodies.get(effect[2], "") for effect in effects}
        unexplained = told.unexplained(effects, "h0")
        rows.report(case, "fuzz_effects", len(unexplained), "1", "== 0", effects=unexplained)
        asked, must = len(effects) - len(unexplained), ">= 1" if name == own else None
        rows.report(case, "effects_asked_for", asked, "1", must, asked_by=asked_for)
        assert stack.receiver is not None
        memory = Path(f"/proc/{stack.receiver.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in memory.splitlines() if line.startswith("VmHWM"))
        rows.report(case, "receiver_peak_rss", peak / 1024, "MiB", "<= 256")


def real_kills(count: int) -> None:
    """kill -9 of receiver and agent while the plugin itself carries a job's data; needs root."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-kills-") as folder,
        Lab(hosts=2, rails=2, nic_mbit=400) as lab,
    ):
        stack, ring = Stack(Path(folder)), Ring(lab, 2, ["--bytes", "1M"])
        try:
            ring.wait_running()
            outcome = kill_again_and_again(stack, ring, count, seed=20261123)
            ring.stop()
        finally:
            stack.close()
    case = f"{outcome.kills} kills, real plugin"
    reached = sorted(outcome.failpoints)
    rows.report(case, "kill9_lost", len(outcome.lost), "1", "== 0", accepted=len(outcome.accepted))
    rows.report(case, "kill9_doubled", outcome.doubled, "1", "== 0", effects=len(outcome.effects))
    rows.report(case, "kill9_missing", len(outcome.missing), "1", "== 0", actions=outcome.missing[:5])
    rows.report(
        case, "failpoints_reached", len(reached), "1", ">= 12" if count >= 60 else None, names=reached
    )
    rows.report(case, "journal_intact", float(outcome.intact), "1", "== 1")


def _get(stack: Stack, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", stack.receiver_port, timeout=60)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def main() -> None:
    """`make bench NAME=remediation ARGS="--seconds 10"`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each throughput case")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10, help="of the latency case")
    parser.add_argument("--kills", type=int, default=10, help="of the crash case")
    parser.add_argument("--payloads", type=int, default=100_000, help="of each kind of the fuzz case")
    parser.add_argument("--real-kills", type=int, default=200, help="of the case with the plugin; needs root")
    parser.add_argument("--fleets", type=int, default=3, help="of the rebalancing case, which needs root")
    parser.add_argument("--simulated", type=int, default=100, help="fleets of the simulated cases")
    parser.add_argument("--steps", type=int, default=10_000, help="of each fleet of state_machine")
    parser.add_argument("--examples", type=int, default=10_000, help="of hypothesis, of state_machine")
    parser.add_argument("--cases", default="", help="comma-separated; all by default")
    options = parser.parse_args()
    cases = {
        "throughput": lambda stack: throughput(stack, options.seconds, options.connections),
        "firing": lambda stack: firing(stack, options.seconds, options.connections),
        "storm": storm,
        "latency": lambda stack: latency(stack, options.rounds),
        "attacks": under_attack,
        "fuzz": lambda stack: fuzz(stack, options.payloads, min(4, options.connections)),
        "crash": lambda stack: crash_loop(stack, options.kills),
    }
    if not options.cases or "rebalance" in options.cases.split(","):
        rebalance(rows, options.fleets)
    if not options.cases or "kills" in options.cases.split(","):
        real_kills(options.real_kills)
    if not options.cases or "state_machine" in options.cases.split(","):
        guards(rows, options.simulated, options.steps, options.examples)
    if not options.cases or "lanes" in options.cases.split(","):
        lanes(rows, min(20, options.simulated))
    chosen = options.cases.split(",") if options.cases else list(cases)
    for name, case in ((name, cases[name]) for name in chosen if name in cases):
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as folder:
            stack = Stack(Path(folder))
            try:
                quiet = {"hold": {"initial_s": 0.2, "cap_s": 16, "jitter": 0, "sticky_count": 1000}}
                if name in ("attacks", "fuzz"):
                    start_with_credentials(stack)
                else:
                    stack.start_receiver(quiet if name == "latency" else None)
                    stack.start_plugin()
                    stack.start_agent()
                    stack.wait_receiver()
                    stack.wait_agent()
                case(stack)
            finally:
                stack.close()
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
