"""A receiver under attack: by strangers, by who has a token, and by a leaf of a large fleet."""

import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.rows import Rows, thread_seconds
from tests.fixtures.remediation.attacks import OPERATOR, TOKEN, Attack
from tests.fixtures.remediation.stack import Stack, alert, request, webhook
from tests.fixtures.waiting import wait_for


def memory_mib(pid: int, name: str) -> float:
    """VmRSS, or VmHWM: the most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def under_attack(rows: Rows, stack: Stack, attacks: Sequence[Attack], by: str) -> None:
    """Webhook and kill switch during each attack: answered within 1 s, no effect on the job of h0, little memory.

    On a machine that does other work a slow answer says little; what the receiver's event loop did before it, in CPU
    time, says whether it was the receiver.
    """
    assert stack.receiver is not None
    pid = stack.receiver.pid
    asks = by == "with credentials"
    for attack in attacks:
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
                        shown = credentials if asks else {}
                        answered += request(stack.url + path, body, timeout_s=10, **shown)[0] == 200
                    slowest = max(slowest, time.monotonic() - begun)
                    now_ran_s, now_waited_s = thread_seconds(pid)
                    busy, waited = max(busy, now_ran_s - ran_s), max(waited, now_waited_s - waited_s)
        case = f"{attack.__name__}, {by}"
        rows.report(case, "under_attack_answered", answered / asked, "1", "== 1")
        rows.report(case, "slowest_answer", slowest, "s", "<= 1", loop_waited_for_a_core_s=waited)
        rows.report(case, "loop_cpu_before_an_answer_max", busy, "s", "<= 0.5")
        rows.report(case, "under_attack_effects", len(stack.effects()), "1", "== 0")
        rows.report(case, "receiver_rss", memory_mib(pid, "VmRSS"), "MiB", peak=memory_mib(pid, "VmHWM"))


def leaf(rows: Rows, stack: Stack, hosts: int, ports: int, seconds: float) -> None:
    """A leaf's ports flap together in a large fleet; guards as they are by default. Then one NIC alone, which leaves.

    Once all at a time, once one host after the other, each for longer than the window that they must begin within.
    """
    nics = {f"rail{i}": True for i in range(8)}
    body = json.dumps({"processes": 1, "devices": nics, "health": dict.fromkeys(nics, "healthy")})
    names = [f"h{i:04d}" for i in range(hosts)]

    def go_on(firing: list[dict[str, Any]], gap_s: float, seconds: float) -> int:
        """Alerts come, agents report; returns how many NICs were taken out so far."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection = http.client.HTTPConnection("127.0.0.1", stack.receiver_port, timeout=60)
            for name in names:
                connection.request("POST", f"/api/v1/agents/{name}/report", body)
                answer = connection.getresponse()
                assert (answer.status, answer.read()) == (200, b"noted\n")
            connection.close()
            while firing:
                assert stack.post(webhook(firing.pop(0)))[0] == 200
                time.sleep(gap_s)  # alerts of hosts that come one by one
            time.sleep(5)  # agents report so often
        return sum(action["action"] == "nic.avoid" for action in stack.actions())

    for turn, (how, gap_s) in enumerate((("at once", 0.0), ("one by one", 0.3))):
        firing = [alert(name, f"rail{turn}") for name in names[turn * ports :][:ports]]
        for entry in firing:
            entry["labels"] |= {"leaf": f"leaf{turn}"}
        took_out = go_on(firing, gap_s, seconds)
        blocked = Counter(target["blocked"] for target in stack.get("/api/v1/targets"))
        case = f"{ports} ports of a leaf of {hosts} hosts, {how}, {seconds:g} s"
        rows.report(case, "under_attack_effects", took_out, "1", "== 0", blocked=dict(blocked))
    took_out = go_on([alert(names[-1], "rail7")], 0.0, 10.0)
    rows.report("one NIC alone, after that", "taken_out", took_out, "1", "== 1")


def hanging(rows: Rows, stack: Stack, sockets: int) -> None:
    """Sockets that hang in the plugin directory: how long until the job's own process has acted."""
    held, folder = [], stack.folder / "h0" / "plugin"
    for number in range(sockets):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(folder / f"{200_000 + number}.sock"))
        listener.listen(8)
        held.append(listener)
    time.sleep(10)  # the agent meets them
    count, begun = len(stack.effects()), time.monotonic()
    stack.post(webhook(alert()))
    wait_for(lambda: len(stack.effects()) > count, 60, "acted")
    case = f"{sockets} sockets that hang"
    rows.report(case, "webhook_to_process", time.monotonic() - begun, "s", "<= 1")
    rows.report(case, "under_attack_effects", len(stack.effects()) - count - 1, "1", "== 0")
    for listener in held:
        listener.close()
