"""One NIC of ten broken in each way: which series of the other nine are still there."""

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.nic.daemons import NODE_PORT, node_command, parse, rows, running
from tests.fixtures.hostinfo.sys_tree import SysTree
from tests.fixtures.nic.broken_nic import VICTIM, WAYS, permission_denied

from fabricpulse.hostinfo.sources import host_sources
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter


def bench_broken(root: Path, binary: str | None) -> None:
    """One NIC of ten broken in each way, before the start and under a running exporter."""
    worst, worst_way, worst_peer, peer_zero = 1.0, "", 1.0, 0
    for way in [*(way for way, _ in WAYS), permission_denied]:
        kept = min(_kept(root, way, live) for live in (False, True))
        if kept < worst:
            worst, worst_way = kept, way.__name__
        if binary is not None and way is not permission_denied:
            peer = _kept_by_node(root, binary, way)
            worst_peer = min(worst_peer, peer)
            peer_zero += peer == 0
    kept, peer_kept = _kept_in_a_race(root, binary)
    if kept < worst:
        worst, worst_way = kept, "disappearing_during_the_read"
    worst_peer = min(worst_peer, peer_kept)
    peer_zero += peer_kept == 0
    more: dict[str, Any] = (
        {"peer": "node_exporter", "peer_value": worst_peer, "peer_lost_all": peer_zero} if binary else {}
    )
    more |= {"worst_way": worst_way} if worst_way else {}
    rows.report(f"{len(WAYS) + 2} ways", "broken_nic_series_kept", worst, "ratio", "== 1", **more)


def _others(samples: Iterator[tuple[str, dict[str, str], float]]) -> dict[tuple[str, ...], float]:
    found = {}
    for name, labels, value in samples:
        device = labels.get("device", "")
        if device not in ("", VICTIM, "eth3np0") and not name.startswith("fabricpulse_scrape"):
            found[(name, *sorted(labels.values()))] = value
    return found


def _fresh(root: Path) -> SysTree:
    shutil.rmtree(root, ignore_errors=True)
    tree = SysTree(root)
    tree.gpu_host(gid_slots=16)
    return tree


def _kept(root: Path, way: Callable[[SysTree], None], live: bool) -> float:
    tree = _fresh(root)
    as_nobody = way is permission_denied
    if as_nobody:
        subprocess.run(["chown", "-R", "65534", str(root)], check=True)
        os.seteuid(65534)
    try:
        exporter = NicExporter(NicConfig(), host_sources(root))
        healthy = _others(parse(exporter.collect_once()))
        if not live:
            exporter.close()
        way(tree)
        if not live:
            exporter = NicExporter(NicConfig(), host_sources(root))
        broken = _others(parse(exporter.collect_once()))
        exporter.close()
    finally:
        if as_nobody:
            os.seteuid(0)
    return sum(1 for key, value in healthy.items() if broken.get(key) == value) / len(healthy)


def _kept_in_a_race(root: Path, binary: str | None, scrapes: int = 150) -> tuple[float, float]:
    """The worst scrape of ours and of node_exporter while the device's directory goes and comes back all the time."""
    tree = _fresh(root)
    device = tree.ib(VICTIM)
    away = device.with_name("away")
    over = threading.Event()

    def unbind_and_bind() -> None:
        rng = random.Random(5)
        while not over.wait(0.001 * rng.random()):
            device.rename(away)
            over.wait(0.001 * rng.random())
            away.rename(device)

    def kept(
        samples: Iterator[tuple[str, dict[str, str], float]], healthy: dict[tuple[str, ...], float]
    ) -> float:
        found = _others(samples)
        return sum(1 for key, value in healthy.items() if found.get(key) == value) / len(healthy)

    exporter = NicExporter(NicConfig(), host_sources(root))
    healthy = _others(parse(exporter.collect_once()))
    with ExitStack() as stack:
        node = stack.enter_context(running(node_command(binary, root), NODE_PORT)) if binary else None
        theirs = _others(parse(node.scrape())) if node else {}
        theirs = {key: value for key, value in theirs.items() if key[0].startswith("node_infiniband")}
        thread = threading.Thread(target=unbind_and_bind)
        thread.start()
        try:
            worst = min(kept(parse(exporter.collect_once()), healthy) for _ in range(scrapes))
            worst_peer = min(kept(parse(node.scrape()), theirs) for _ in range(scrapes)) if node else 1.0
        finally:
            over.set()
            thread.join()
    exporter.close()
    return worst, worst_peer


def _kept_by_node(root: Path, binary: str, way: Callable[[SysTree], None]) -> float:
    tree = _fresh(root)
    with running(node_command(binary, root), NODE_PORT) as node:
        healthy = {
            k: v for k, v in _others(parse(node.scrape())).items() if k[0].startswith("node_infiniband")
        }
        way(tree)
        try:
            broken = _others(parse(node.scrape()))
        except (TimeoutError, ConnectionError):
            # It waits for the FIFO's writer, or does not survive the scrape; so Prometheus would have nothing.
            broken = {}
            node.process.kill()
    return sum(1 for key, value in healthy.items() if broken.get(key) == value) / len(healthy)
