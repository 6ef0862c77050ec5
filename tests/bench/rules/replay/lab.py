"""One fault of each kind of the trace on a small fleet of real links: mesh and NIC exporters, Prometheus, Alertmanager
and the rules as shipped, but for how long some wait.

Links are cut for real. What only hardware has (GIDs, speed, the PCIe bus) the NIC exporters read in a fake `/sys`.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.rules.pages import HOSTS, Stand, stand
from tests.bench.rules.replay.hardware import RAILS, Nics, netdev
from tests.bench.rules.replay.judgement import CAUSES, SYMPTOMS

# The alerts on hardware wait for minutes: the relations between these times stay.
_KNOBS = {
    "slowInterval": "2s",
    "rareInterval": "4s",
    "flowInterval": "2s",
    "nicGoneFor": "6s",
    "gidInconsistentFor": "10s",
    "pcieDegradedFor": "15s",
    "oddFor": "20s",
}
# Longer than any of these and Alertmanager's group_wait of a ticket, 30 s, together.
_WATCHED_S = 65.0
# Kind, host, rail and, of a GID error, which one.
FAULTS = (
    ("link down", "h0", 0, 0),
    ("NIC lost", "h1", 1, 0),
    ("low speed", "h2", 0, 0),
    ("PCIe width low", "h2", 1, 0),
    ("GID error", "h3", 1, 0),
    ("GID error", "h1", 0, 2),
    # Last: for a quarter of an hour it is said that a GID has moved.
    ("GID error", "h0", 1, 1),
)


@dataclass(frozen=True)
class Sampled:
    """A fault on real links. alerts : names of what on-call was notified of, here. others : elsewhere."""

    kind: str
    alerts: frozenset[str]
    others: frozenset[str]
    first_s: float | None

    @property
    def right(self) -> bool:
        """Whether the cause was named, and nothing else."""
        names = self.alerts - SYMPTOMS.get(self.kind, set())
        return bool(names) and names <= CAUSES[self.kind] and not self.others


def sample() -> Iterator[Sampled]:
    """One after another; the fleet is well between them."""
    with _fleet() as (fleet, nics):
        for kind, host, rail, nth in FAULTS:
            fleet.wait(
                lambda: not fleet.alertmanager.alerts('alertname!="FabricWatchdog"'), "a fleet that is well"
            )
            fleet.pager.firing.clear()
            began = time.monotonic()
            nics[host].breaks(rail, kind, nth)
            cut = kind in {"link down", "NIC lost"}
            if cut:
                fleet.link((host, netdev(rail)), up=False)
            fleet.wait(lambda began=began: time.monotonic() > began + _WATCHED_S, "the notifications")
            notified = dict(fleet.pager.firing)
            nics[host].repaired(rail, kind)
            if cut:
                fleet.link((host, netdev(rail)), up=True)
            own = {key for key in notified if key[1] == host and key[2] in {"", netdev(rail)}}
            yield Sampled(
                kind,
                frozenset(name for name, *_ in own),
                frozenset(name for name, *_ in set(notified) - own),
                min((notified[key] - began for key in own), default=None),
            )


@contextmanager
def _fleet() -> Iterator[tuple[Stand, Mapping[str, Nics]]]:
    folder = Path(tempfile.mkdtemp())  # nodes of a lab have a /dev/shm of their own
    nics = {f"h{number}": Nics(folder / f"h{number}") for number in range(HOSTS)}
    config: dict[str, Any] = {
        "expected": {"ports": RAILS, "rate_gbit_s": 400},
        "gid": {"refresh_s": 1},
        # It counts by the kernel's events of the real link, which are not those of the fake `/sys`.
        "collectors": {"flaps": False},
        "networks": {f"mlx5_{rail}": netdev(rail) for rail in range(RAILS)},
    }
    try:
        with stand(1.0, push=True, rules=_KNOBS, nics=lambda host: (folder / host, config)) as fleet:
            yield fleet, nics
    finally:
        shutil.rmtree(folder)
