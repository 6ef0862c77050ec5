"""Two rings on a few links, exact: what they carry, and a fleet in memory whose lanes are those of such rings.

A ring of two ranks has a connection each way with two lanes. A link gives each of its lanes the same part, and what one
does not use the others do not win: that is what two rings on two spines of the lab come to (one lane that shares its
link with both lanes of the other ring's connection: 0.88 of what both carry on links of their own; 0.83 here).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from tests.unit.remediation.simulation.fabric_model import Fabric, Lane

from fabricpulse.remediation.protocol import LaneOrder, LaneSample, Result
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneSummary

LINK = 25e6  # bytes per second
JOBS = ("job0", "job1")
# (job, direction, lane).
Key = tuple[int, int, int]
KEYS: tuple[Key, ...] = tuple((job, way, lane) for job in range(2) for way in range(2) for lane in range(2))
Places = Mapping[Key, int]


def rings(places: Places) -> tuple[dict[int, float], dict[Key, LaneSummary]]:
    """Bytes per second of each ring, one way, and what is measured of its lanes. places : link of each lane."""
    on = Counter((way, link) for (_, way, _), link in places.items())
    share = {key: LINK / on[key[1], link] for key, link in places.items()}
    connection: dict[tuple[int, int], float] = defaultdict(float)
    for (job, way, _), rate in share.items():
        connection[job, way] += rate
    ring = {job: min(LINK, connection[job, 0], connection[job, 1]) for job in range(2)}
    carried = {key: ring[key[0]] * rate / connection[key[:2]] for key, rate in share.items()}
    load: dict[tuple[int, int], float] = defaultdict(float)
    for key, rate in carried.items():
        load[key[1], places[key]] += rate
    lanes = {}
    for (job, way, lane), rate in share.items():
        key = (job, way, lane)
        waits_for_it = ring[job] >= 0.999 * connection[job, way]
        congested = waits_for_it or load[way, places[key]] >= 0.9 * LINK
        sample = LaneSample(
            "1", f"{2 * job + way:016x}", lane, JOBS[job], "rail0", 20_000 + lane, 500, carried[key], rate,
            5e-3, 1, 1, 10 * LINK,
        )  # fmt: skip
        busy = 1.0 if congested else carried[key] / rate
        lanes[key] = LaneSummary(f"h{2 * job + way}", sample, carried[key], rate, congested, False, busy)
    return ring, lanes


def total(places: Places) -> float:
    """What both rings carry, in links."""
    return sum(rings(places)[0].values()) / LINK


class Rings(Fabric):
    """A fleet of two rings, whose plugins have searched already and search no more."""

    def __init__(self, seed: int, places: Places, **fields: float) -> None:
        super().__init__(2, 2, 4, seed, **fields)  # type: ignore[arg-type]
        self.by_key = {
            (job, way, lane): Lane(JOBS[job], f"h{2 * job + way}", f"{2 * job + way:016x}/{lane}", 7 * at)
            for at, (job, way, lane) in enumerate(KEYS)
        }
        self.lanes = list(self.by_key.values())
        for key, lane in self.by_key.items():
            lane.entropy = next(p for p in range(1024, 65535) if self.link_of(lane, p) == places[key])
        searched = set(JOBS)
        self.reconciler.rebalancer._searched = lambda *_: searched  # type: ignore[method-assign]

    def places(self) -> dict[Key, int]:
        """Link of each lane."""
        return {key: lane.link(self.spines) for key, lane in self.by_key.items()}

    def goodput(self) -> float:
        """Of both, in links."""
        return total(self.places())

    def _report(self) -> None:
        _, summaries = rings(self.places())
        for key, lane in self.by_key.items():
            found, noise = summaries[key], self.chance.uniform(0.95, 1.05)
            last = found.last
            self._post(
                lane.host,
                LaneSample(
                    "1", last.connection, last.lane, last.workload, "rail0", lane.entropy, 500,
                    found.goodput * noise, found.capacity * noise, 5e-3, int(found.congested), lane.repaths,
                    10 * LINK, found.busy,
                ),
            )  # fmt: skip

    def _carry_out(self, host: str, order: LaneOrder) -> None:
        self.operations.append(self.now)
        lane = next(
            lane
            for lane in self.lanes
            if (lane.host, lane.connection) == (host, f"{order.connection}/{order.lane}")
        )
        lane.entropy = order.value or self._port_to(lane)
        lane.repaths += 1
        self._post(host, Result(order.op_id, "applied", 1))
