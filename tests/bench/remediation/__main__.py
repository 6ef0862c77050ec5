"""What the receiver takes: deliveries a second on a real disk, one huge body, and how long until a process has acted.

Each case runs the daemon as it is installed, over HTTP, with synchronous=FULL. Gates are the goals of the design; one
that is missed ends with exit code 1.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from tests.bench.remediation.attacked import hanging, leaf, memory_mib, under_attack
from tests.bench.remediation.behaviours import alertmanager_behaviours
from tests.bench.remediation.demo import demo
from tests.bench.remediation.failover import failover_prediction
from tests.bench.remediation.fuzzed import in_process
from tests.bench.remediation.optimum import MIN_GAIN, PATTERNS, to_optimum
from tests.bench.remediation.rebalance import rebalance
from tests.bench.remediation.selector import both_controllers, selector
from tests.bench.remediation.simulated import guards, lanes
from tests.bench.remediation.wrong_rates import wrong_rates
from tests.bench.rows import Rows, cpu_seconds, quantile
from tests.fixtures.postgres import postgres_server
from tests.fixtures.remediation.attacks import (
    ATTACKS,
    NETWORK_ATTACKS,
    TOKEN,
    start_with_credentials,
)
from tests.fixtures.remediation.fuzz import Responses, post_mutants
from tests.fixtures.remediation.insiders import INSIDE_ATTACKS, READING_ATTACKS
from tests.fixtures.remediation.kills import kill_again_and_again
from tests.fixtures.remediation.leaders import TAKEOVER_S, end_leaders
from tests.fixtures.remediation.stack import Stack, alert, kill, webhook
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
    """Deliveries of ten alerts while ever more NICs fire: their number must not slow deliveries down.

    cpu_ms : of the receiver for each delivery. idle_cpu : cores that it takes while nothing comes in.
    """
    assert stack.receiver is not None
    pid, body = stack.receiver.pid, json.dumps(webhook(*alerts(10))).encode()
    for count in (160, 4_000, 50_000):
        status, text = stack.post(json.dumps(webhook(*alerts(count))).encode())
        assert status == 200, text
        begun, cpu_s = time.monotonic(), cpu_seconds(pid)
        with concurrent.futures.ThreadPoolExecutor(connections) as pool:
            futures = [
                pool.submit(sender, stack.receiver_port, body, begun + seconds) for _ in range(connections)
            ]
            took = sorted(t for future in futures for t in future.result())
        cpu_ms = 1e3 * (cpu_seconds(pid) - cpu_s) / len(took)
        case, load = f"10 alerts, {count} NICs firing", os.getloadavg()[0]
        rate = len(took) / (time.monotonic() - begun)
        rows.report(case, "posts_per_s", rate, "1/s", ">= 1000", cpu_ms=round(cpu_ms, 3), load=load)
        rows.report(case, "p99", quantile(took, 0.99), "s", "<= 0.25")
        cpu_s = cpu_seconds(pid)
        time.sleep(seconds)  # the measurement itself
        rows.report(case, "idle_cpu", (cpu_seconds(pid) - cpu_s) / seconds, "cores")


def storm(stack: Stack) -> None:
    """One body of 10,000 alerts, and of 50,000."""
    assert stack.receiver is not None
    pid = stack.receiver.pid
    for count, limit in ((10_000, 2.0), (50_000, 10.0)):
        body = json.dumps(webhook(*alerts(count))).encode()
        begun, cpu_s = time.monotonic(), cpu_seconds(pid)
        status, text = stack.post(body)
        took = time.monotonic() - begun
        assert status == 200, text
        cpu_s = cpu_seconds(pid) - cpu_s
        case = f"{count} alerts in one body ({len(body) / 1e6:.1f} MB)"
        rows.report(case, "storm_s", took, "s", f"<= {limit}", cpu_s=cpu_s, load=os.getloadavg()[0])
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
    case, p99 = f"{rounds} alerts", 1e3 * quantile(acted, 0.99)
    rows.report(case, "post_to_effect_ms_p50", 1e3 * quantile(acted, 0.5), "ms")
    rows.report(case, "post_to_effect_ms_p99", p99, "ms", "<= 500", load=os.getloadavg()[0])
    rows.report(case, "webhook_to_verified_max", max(verified), "s", "<= 2")


def diverged(stack: Stack) -> None:
    """Processes, an agent and a receiver that have another state than was decided: how long until all agree again."""
    stack.post(webhook(alert()))
    stack.wait_phase("avoided")

    def healed(case: str, shown: list[bool], begun: float) -> None:
        wait_for(lambda: stack.shown("rail0") == shown and stack.phase() == "avoided", 150, case)
        rows.report(
            case, "diverged_healed_s", time.monotonic() - begun, "s", "<= 120", load=os.getloadavg()[0]
        )

    (action,) = stack.actions()
    by_hand = {"op": "nic.restore", "op_id": "by-hand", "generation": action["generation"], "device": "rail0"}
    assert all(answer["ok"] for answer in stack.ask_plugins(by_hand))
    assert stack.shown("rail0") == [False]
    healed("the NIC is put back by the socket of a job", [True], time.monotonic())
    begun = time.monotonic()
    stack.start_plugin()
    healed("a job starts", [True, True], begun)
    kill(stack.agents["h0"])
    for path in stack.folder.glob("h0.db*"):
        path.unlink()
    stack.start_plugin()
    begun = time.monotonic()
    stack.start_agent()
    healed("an agent has lost its journal", [True, True, True], begun)
    kill(stack.receiver)
    for path in stack.folder.glob("receiver.db*"):
        path.unlink()
    begun = time.monotonic()
    stack.start_receiver({"hold": {"initial_s": 3600}})
    stack.wait_receiver()
    healed("a receiver has lost its journal", [True, True, True], begun)


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
        seed, responses, begun = json.dumps(body).encode(), Responses(), time.monotonic()
        with concurrent.futures.ProcessPoolExecutor(connections) as pool:
            share = -(-payloads // connections)
            futures = [
                pool.submit(post_mutants, stack.receiver_port, path, seed, share, number, token)
                for number in range(connections)
            ]
            for future in futures:
                responses.add(future.result())
        time.sleep(3)  # what was decided last is carried out, too
        effects = stack.effects()[before:]
        before += len(effects)
        statuses = {str(status): count for status, count in sorted(responses.statuses.items())}
        case = f"{responses.statuses.total()} mutants of {name}"
        rows.report(
            case,
            "fuzz_5xx",
            responses.failures,
            "1",
            "== 0",
            statuses=statuses,
            took_s=time.monotonic() - begun,
        )
        bodies = {
            device: responses.bodies[nic]
            for nic in responses.bodies
            for host, device in (nic,)
            if host == "h0"
        }
        asked_for = {effect[2]: bodies.get(effect[2], "") for effect in effects}
        unexplained = responses.unexplained(effects, "h0")
        rows.report(case, "fuzz_effects", len(unexplained), "1", "== 0", effects=unexplained)
        asked, must = len(effects) - len(unexplained), ">= 1" if name == own else None
        rows.report(case, "effects_asked_for", asked, "1", must, asked_by=asked_for)
        assert stack.receiver is not None
        rows.report(case, "receiver_peak_rss", memory_mib(stack.receiver.pid, "VmHWM"), "MiB", "<= 256")


def real_kills(count: int) -> None:
    """kill -9 of receiver and agent while the plugin itself carries a job's data; needs root."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-kills-") as folder,
        Lab(hosts=2, rails=2, nic_mbit=400) as lab,
    ):
        stack, ring = Stack(Path(folder), forked=True), Ring(lab, 2, ["--bytes", "1M"])
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


def leaders(count: int, fleets: int) -> None:
    """Leaders on PostgreSQL that are killed or stopped, in fleets of two receivers that do so at the same time: most of
    a takeover is waiting for a lease to end."""
    share = -(-count // fleets)
    with tempfile.TemporaryDirectory(prefix="bench-ha-") as folder, postgres_server() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for number in range(fleets):
                connection.execute(f"CREATE DATABASE fleet{number}".encode())
                (Path(folder) / str(number)).mkdir()
        with concurrent.futures.ThreadPoolExecutor(fleets) as pool:
            found = list(
                pool.map(
                    lambda number: end_leaders(
                        url.replace("///postgres?", f"///fleet{number}?"),
                        Path(folder) / str(number),
                        share,
                        20261127 + number,
                    ),
                    range(fleets),
                )
            )
    took = [took_s for fleet in found for took_s in fleet.took_s]
    problems = [problem for fleet in found for problem in fleet.problems]
    case = f"{len(took)} leaders killed or stopped"
    rows.report(case, "takeover_s_max", max(took), "s", f"<= {TAKEOVER_S}", load=os.getloadavg()[0])
    rows.report(case, "takeover_s_p50", quantile(sorted(took), 0.5), "s")
    rows.report(case, "stale_effects", len(problems), "1", "== 0", problems=problems[:3])
    rows.report(case, "killed_with_the_lease_taken", sum(fleet.at_failpoint for fleet in found), "1")


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
    parser.add_argument("--mutants", type=int, default=1_000_000, help="of the case fuzz_in_process")
    parser.add_argument("--real-kills", type=int, default=200, help="of the case with the plugin; needs root")
    parser.add_argument("--leaders", type=int, default=100, help="of the case ha, with PostgreSQL")
    parser.add_argument("--fleets", type=int, default=3, help="of the rebalancing case, which needs root")
    parser.add_argument("--patterns", default=",".join(PATTERNS), help="of the case optimum")
    parser.add_argument(
        "--min-gain", type=float, default=MIN_GAIN, help="of the cases optimum and wrong_rates"
    )
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
        "diverged": diverged,
        "attacks": lambda stack: under_attack(
            rows, stack, (*ATTACKS, *INSIDE_ATTACKS, *READING_ATTACKS), "with credentials"
        ),
        "open_attacks": lambda stack: under_attack(
            rows, stack, (*NETWORK_ATTACKS, *INSIDE_ATTACKS, *READING_ATTACKS), "open"
        ),
        "leaf": lambda stack: leaf(rows, stack, 400, 32, 70.0),
        "hanging": lambda stack: hanging(rows, stack, 200),
        "fuzz": lambda stack: fuzz(stack, options.payloads, min(4, options.connections)),
        "crash": lambda stack: crash_loop(stack, options.kills),
    }
    if not options.cases or "rebalance" in options.cases.split(","):
        rebalance(rows, options.fleets)
    if not options.cases or "optimum" in options.cases.split(","):
        to_optimum(rows, options.fleets, options.patterns.split(","), options.min_gain)
    if not options.cases or "demo" in options.cases.split(","):
        demo(rows, options.fleets)
    if not options.cases or "failover" in options.cases.split(","):
        failover_prediction(rows, options.fleets)
    if not options.cases or "alertmanager" in options.cases.split(","):
        alertmanager_behaviours(rows)
    if not options.cases or "kills" in options.cases.split(","):
        real_kills(options.real_kills)
    if not options.cases or "ha" in options.cases.split(","):
        leaders(options.leaders, 4)
    if not options.cases or "state_machine" in options.cases.split(","):
        guards(rows, options.simulated, options.steps, options.examples)
    if not options.cases or "fuzz_in_process" in options.cases.split(","):
        in_process(rows, options.mutants)
    if not options.cases or "lanes" in options.cases.split(","):
        lanes(rows, min(20, options.simulated))
    if not options.cases or "wrong_rates" in options.cases.split(","):
        wrong_rates(rows, options.min_gain)
    if not options.cases or "selector" in options.cases.split(","):
        selector(rows, min(6, options.simulated))
    if not options.cases or "both_controllers" in options.cases.split(","):
        both_controllers(rows, min(6, options.simulated))
    chosen = options.cases.split(",") if options.cases else list(cases)
    for name, case in ((name, cases[name]) for name in chosen if name in cases):
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as folder:
            stack = Stack(Path(folder))
            try:
                quiet = {"hold": {"initial_s": 0.2, "cap_s": 0.2, "jitter": 0, "sticky_count": 1000}}
                if name in ("attacks", "fuzz"):
                    start_with_credentials(stack)
                else:
                    given: dict[str, dict[str, Any]] = {"latency": quiet, "leaf": {"guards": {}, "hold": {}}}
                    stack.start_receiver(given.get(name))
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
