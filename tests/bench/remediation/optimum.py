"""Jobs that share spines while the plugin balances and re-paths by itself and the receiver may move lanes as well: what
they carry in the end, to what they carry in the best assignment of lanes to spines, measured on the same lab.

With two spines of the same speed and jobs that are all alike the best assignment puts half of them on each.
"""

import signal
import time
from collections.abc import Collection
from typing import Any

import yaml
from tests.bench.remediation.rebalance import (
    CONFIG,
    ENDED,
    PORT,
    STATIC,
    UPLINK_MBIT,
    plans_of,
    short,
    start_agent,
    start_daemon,
)
from tests.bench.rows import Rows
from tests.integration.plugin.paths import put_on, sending, spine_of, two_spines
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.plugin_ipc.control import ControlClient

TWO_RINGS = (("h0", "h2"), ("h1", "h3"))
# What of an exchange of all with all crosses the spines. Each host is once rank 0 and once rank 1: ranks write to files
# by their number.
ALL_TO_ALL = (("h0", "h2"), ("h1", "h3"), ("h3", "h0"), ("h2", "h1"))
PATTERNS = {"two_rings": TWO_RINGS, "all_to_all": ALL_TO_ALL}
_SPAN_S = 6.0
_LONGEST_S = 150.0
# What is tried last must have ended before the result is measured.
_PLAN_ENDS_S = 60.0
_GOAL = 0.97
# With the receiver's default of 1.1, what carries 0.91 of the best assignment stays as it is.
MIN_GAIN = 1.05


class _Ring(Ring):
    """One of several rings on the same hosts."""

    def control(self, host: str, **message: Any) -> dict[str, Any]:
        """See Ring.control."""
        (pid,) = (rank.process.pid for rank in self.ranks if rank.host == host)
        sockets = (self.lab.host(host).run_dir / "plugin").glob("*.sock")
        (path,) = (path for path in sockets if path.stem.partition("-")[0] == str(pid))
        with ControlClient(path) as client:
            return client.call(message)


def _run(lab: Lab, pairs: tuple[tuple[str, str], ...], env: dict[str, str], spines: list[str]) -> list[Ring]:
    """Rings of these pairs, running, with all lanes of the nth on the nth of `spines`."""
    rings: list[Ring] = [
        _Ring(
            lab,
            2,
            ["--bytes", "8M", "--channels", "1"],
            env={"FABRICPULSE_WORKLOAD": f"ring{at}", **env},
            hosts=pair,
            port=7000 + at,
        )
        for at, pair in enumerate(pairs)
    ]
    for ring in rings:
        ring.wait_running(60.0)
    for ring, (a, b), spine in zip(rings, pairs, spines, strict=True):
        put_on(ring, a, b, spine)
        put_on(ring, b, a, spine)
    return rings


def _carried(rings: list[Ring]) -> float:
    """Bytes per second of all of them over the next seconds."""
    since = time.time()
    time.sleep(_SPAN_S)  # the measurement itself
    for ring in rings:
        ring.wait_printed(since + _SPAN_S)
    return sum(ring.bandwidth(since, since + _SPAN_S) for ring in rings)


def _repaths(rings: list[Ring]) -> int:
    hosts = [(ring, rank.host) for ring in rings for rank in ring.ranks]
    return sum(lane["repaths"] for ring, host in hosts for c in sending(ring, host) for lane in c["lanes"])


def _places(rings: list[Ring], pairs: tuple[tuple[str, str], ...]) -> str:
    """The spine of each lane: "01 10 11 01" for two lanes of two connections of two rings."""
    return " ".join(
        "".join(spine_of(ring, host, peer, lane)[-1:] for lane in connection["lanes"])
        for ring, pair in zip(rings, pairs, strict=True)
        for host, peer in (pair, pair[::-1])
        for connection in sending(ring, host)
    )


def to_optimum(
    rows: Rows, rounds: int, patterns: Collection[str] = tuple(PATTERNS), min_gain: float = MIN_GAIN
) -> None:
    """Best assignment first; then all lanes on one spine, and what becomes of that."""
    for number in range(rounds):
        for name, pairs in ((name, PATTERNS[name]) for name in patterns):
            with two_spines(UPLINK_MBIT) as lab:
                _one(rows, f"{name}_{UPLINK_MBIT}mbit_spines_round{number}", lab, pairs, min_gain)


def _one(rows: Rows, case: str, lab: Lab, pairs: tuple[tuple[str, str], ...], min_gain: float) -> None:
    config = CONFIG | {"min_gain": min_gain}
    base: dict[str, Any] = {"rules": [], "watchdog": "", "rebalance": config | {"mode": "observe"}}
    base["journal"] = str(lab.mgmt.directory / "remediation.db")
    daemons = [start_daemon(lab, "mgmt", "receiver", base, f"0.0.0.0:{PORT}")]
    daemons += [start_agent(lab, host) for host in lab.fabric.host_names]
    # With the daemons there, too: they take CPU time from the jobs. They move nothing yet.
    rings = _run(lab, pairs, STATIC, [f"spine{at % 2}" for at in range(len(pairs))])
    time.sleep(2)  # lanes that have just moved start slowly
    optimum = _carried(rings)
    for ring in rings:
        ring.stop()
    (lab.mgmt.directory / "receiver.yaml").write_text(yaml.safe_dump(base | {"rebalance": config}))
    daemons[0].send_signal(signal.SIGHUP)
    rings = _run(lab, pairs, {}, ["spine0"] * len(pairs))
    begun = time.monotonic()
    carried = [_carried(rings)]
    while carried[-1] < _GOAL * optimum and time.monotonic() - begun < _LONGEST_S:
        carried.append(_carried(rings))
    took = time.monotonic() - begun
    while any(plan["phase"] not in ENDED for plan in plans_of(lab)):
        if time.monotonic() - begun > _LONGEST_S + _PLAN_ENDS_S:
            break
        time.sleep(1)  # the receiver decides within a window
    moved = _repaths(rings)
    after = _carried(rings)
    later = _repaths(rings) - moved
    places, plans = _places(rings, pairs), plans_of(lab)
    for ring in rings:
        ring.stop()
    for daemon in daemons:
        daemon.terminate()
        daemon.wait(30)
    rows.report(
        case,
        "rebalance_to_optimum",
        after / optimum,
        "ratio",
        ">= 0.95",
        optimum_mb_s=round(optimum / 1e6, 1),
        carried_mb_s=[round(each / 1e6, 1) for each in carried],
        places=places,
    )
    made = [short(plan) for plan in plans]
    rows.report(case, "rebalance_s", took, "s", repaths=moved, repaths_while_measured=later, plans=made)
