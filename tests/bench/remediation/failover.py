"""What `nic.avoid` is predicted to bring, and what it brings: a ring over two rails, of which one is well, slow, or
loses packets, with the real plugin, an agent and a receiver."""

import tempfile
import time
from pathlib import Path
from statistics import median

from tests.bench.rows import Rows
from tests.fixtures.remediation.stack import Stack, alert, webhook
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

NIC_MBIT = 200
WINDOW_S = 12.0
CONFIG = {"guards": {"settle_s": 0, "recovery_window_s": WINDOW_S}, "hold": {"initial_s": 3600, "jitter": 0}}


def failover_prediction(rows: Rows, rounds: int) -> None:
    """Gain in goodput by receiver's own account; the jobs' own figures beside it."""
    errors: list[float] = []
    for number in range(rounds):
        errors += [_one(rows, f"{fault}_round{number}", fault) for fault in ("none", "slow", "loss")]
    rows.report(f"{rounds} rounds", "failover_prediction_error_median", median(errors), "ratio", "<= 0.15")


def _one(rows: Rows, case: str, fault: str) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="bench-failover-") as folder,
        Lab(hosts=2, rails=2, nic_mbit=NIC_MBIT) as lab,
    ):
        stack, ring = Stack(Path(folder)), Ring(lab, 2, ["--bytes", "4M"])
        try:
            ring.wait_running()
            stack.start_receiver(CONFIG)
            stack.start_agent(run_dir=lab.host("h0").run_dir)
            stack.wait_receiver()
            stack.wait_agent()
            time.sleep(2 * WINDOW_S)  # the best that the host has carried is over a window
            port = lab.port("h0", "rail1")
            if fault == "slow":
                port.limit(NIC_MBIT / 5)
            elif fault == "loss":
                port.loss(5)
            time.sleep(WINDOW_S + 4)  # and so is what it carries now
            since = time.time() - WINDOW_S
            before = ring.bandwidth(since, since + WINDOW_S)
            assert stack.post(webhook(alert("h0", "rail1")))[0] == 200
            stack.wait_phase("avoided", "h0", "rail1")
            wait_for(lambda: stack.actions()[-1]["recovery"] != "", 60, "the failover is judged")
            since = time.time() - WINDOW_S
            after = ring.bandwidth(since, since + WINDOW_S)
            (action,) = stack.actions()
            ring.stop()
        finally:
            stack.close()
    error = abs(action["predicted"] - action["measured"]) / action["measured"] if action["measured"] else 1.0
    rows.report(
        case,
        "failover_prediction_error",
        error,
        "ratio",
        predicted=round(action["predicted"], 3),
        measured=round(action["measured"], 3),
        job_says=round(after / before, 3),
        recovery=action["recovery"],
    )
    return error
