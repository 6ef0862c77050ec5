"""Two rings that collide on one spine, with the plugin's own balancing and re-pathing off: what the receiver's
rebalancing wins, on a lab with a receiver, an agent a host, and real jobs."""

import json
import sys
import time
from statistics import median
from typing import Any

import yaml
from tests.bench.rows import Rows
from tests.integration.plugin.paths import collided, elsewhere, two_spines

from fabricpulse.lab import Lab
from fabricpulse.lab.process import LabProcess

UPLINK_MBIT = 200
STATIC = {"FABRICPULSE_BALANCE": "0", "FABRICPULSE_REPATH": "0"}
PORT = 9615
CONFIG = {"mode": "auto", "window_s": 6, "settle_s": 2, "max_tries": 10, "cooldown_s": 10, "quiet_s": 10}
SPAN_S = 4.0
LONGEST_S = 180.0
GOAL = 1.6
ENDED = ("kept", "rolled_back", "rollback_failed", "withdrawn", "dropped")
_GET = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=5).read().decode())"


def start_daemon(lab: Lab, node: str, command: str, config: dict[str, Any], listen: str) -> LabProcess:
    """`fabricpulse remediation COMMAND` on a node of the lab."""
    where = lab.node(node)
    path = where.directory / f"{command}.yaml"
    path.write_text(yaml.safe_dump(config))
    with (where.directory / f"{command}.log").open("w") as log:
        return where.popen(
            [
                *(sys.executable, "-m", "fabricpulse.core.cli", "remediation", command),
                *("--config", str(path), "--web.listen-address", listen),
            ],
            stdout=log,
            stderr=log,
        )


def start_agent(lab: Lab, host: str) -> LabProcess:
    """The agent of a host, which reports to the receiver on mgmt each second."""
    config = {
        "receiver": f"http://{lab.fabric.front_end_addresses['mgmt']}:{PORT}",
        "host": host,
        "journal": str(lab.node(host).directory / "node.db"),
        "report_interval_s": 1,
    }
    return start_daemon(lab, host, "node", config, "127.0.0.1:9616")


def plans_of(lab: Lab) -> list[dict[str, Any]]:
    """The receiver's plans."""
    url = f"http://127.0.0.1:{PORT}/api/v1/rebalances"
    answer = lab.mgmt.run([sys.executable, "-c", _GET, url], check=False)
    found: list[dict[str, Any]] = json.loads(answer.stdout) if answer.returncode == 0 else []
    return found


def rebalance(rows: Rows, rounds: int) -> None:
    """Bandwidth of both rings before and after; what the controller predicted and measured of it itself."""
    address = "{}:{}"
    errors: list[float] = []
    for number in range(rounds):
        with two_spines(UPLINK_MBIT) as lab:
            base = {"rules": [], "watchdog": "", "rebalance": CONFIG}
            base["journal"] = str(lab.mgmt.directory / "remediation.db")
            daemons = [start_daemon(lab, "mgmt", "receiver", base, address.format("0.0.0.0", PORT))]
            rings = collided(lab, "8M", STATIC)
            since = time.time()
            time.sleep(SPAN_S)  # the measurement itself
            before = [ring.bandwidth(since, since + SPAN_S) for ring in rings]
            daemons += [start_agent(lab, host) for host in lab.fabric.host_names]
            begun = time.monotonic()
            plans: list[dict[str, Any]] = []

            while time.monotonic() - begun < LONGEST_S:
                time.sleep(SPAN_S)  # bandwidth is over this span
                plans = plans_of(lab)
                now = time.time()
                speed = sum(ring.bandwidth(now - SPAN_S, now) for ring in rings)
                if speed >= GOAL * sum(before) and all(p["phase"] in ENDED for p in plans):
                    break
            took = time.monotonic() - begun
            since = time.time()
            time.sleep(SPAN_S)  # the measurement itself
            after = [ring.bandwidth(since, since + SPAN_S) for ring in rings]
            left = elsewhere(rings)
            for ring in rings:
                ring.stop()
            for daemon in daemons:
                daemon.terminate()
                daemon.wait(30)
            case = f"two_rings_{UPLINK_MBIT}mbit_spines_round{number}"
            rows.report(
                case,
                "rebalance_gain",
                sum(after) / sum(before),
                "ratio",
                ">= 1.5",
                before_mb_s=[round(each / 1e6, 1) for each in before],
                after_mb_s=[round(each / 1e6, 1) for each in after],
                lanes_elsewhere=left,
            )
            rows.report(case, "rebalance_s", took, "s", plans=[short(plan) for plan in plans])
            kept = [plan for plan in plans if plan["phase"] == "kept"]
            wrong = sum(plan["measured"] < CONFIG.get("min_gain", 1.1) for plan in kept)
            rows.report(case, "rebalance_wrong", wrong, "1", "== 0")
            for plan in kept:
                errors.append(abs(plan["predicted"] - plan["measured"]) / plan["measured"])
                rows.report(case, "prediction_error", errors[-1], "ratio")
    if errors:
        rows.report(f"{rounds} fleets", "prediction_error_median", median(errors), "ratio", "<= 0.15")


def short(plan: dict[str, Any]) -> str:
    """A plan in a line."""
    return (
        f"{plan['phase']} tries={plan['tries']} lanes={len(plan['moves'])} predicted={plan['predicted']:.2f} "
        f"measured={plan['measured']:.2f} {plan['reason']}"
    )
