"""Scenarios about the ring: all begin with a fleet that is well, and compare the ring's bandwidth with what it was."""

from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.scenario_run import Milestone, Phase
from fabricpulse.lab.demo.scenarios.base import Scenario, mean

CLOCK_BOUND_S = 0.001
BASELINE_S = 4.0
# A rail carries traffic when it moves at least this share of what the busiest rail of its host moves.
CARRIES_SHARE = 0.2
# And is idle when it moves less than this many bytes a second (keep-alives, probes of the failed lanes).
IDLE_BYTES_PER_S = 100_000.0


class RingScenario(Scenario):
    """What scenarios with the ring share."""

    def healthy(self) -> Phase:
        """The first phase. It leaves the marks `baseline` and `baseline_mean` (bytes per second)."""
        return Phase(
            "healthy",
            f"healthy: clocks agree, every NIC is connected, the job uses {self._rails()}",
            (
                Milestone("clocks_in_sync", "all clocks in sync on fleet time", self._clocks, 45),
                Milestone("mesh_green", "every NIC connected in the probe mesh", self._mesh, 45),
                Milestone(
                    "traffic_on_all_rails",
                    f"the job runs over {self._rails()} of every host",
                    self._traffic,
                    60,
                ),
                Milestone(
                    "collectives_measured",
                    "every qp exporter has the bandwidth of the job's collective",
                    self._collectives,
                    60,
                ),
                Milestone(
                    "baseline_measured", "bandwidth of the healthy fabric measured", self._baseline, 60
                ),
            ),
        )

    def _rails(self) -> str:
        return "all rails" if self.setting.job.rails is None else f"{self.setting.job.rails} of the rails"

    def _clocks(self, seen: Observed) -> str | None:
        clocks = [host.clock for host in seen.hosts.values()]
        bounds = [clock.bound_s for clock in clocks if clock.synchronized and clock.bound_s is not None]
        errors = [abs(clock.true_error_s) for clock in clocks if clock.true_error_s is not None]
        if len(bounds) < len(clocks) or len(errors) < len(clocks) or max(bounds) > CLOCK_BOUND_S:
            return None
        return (
            f"largest error bound {max(bounds) * 1e6:.1f} µs, largest true error {max(errors) * 1e6:.1f} µs"
        )

    def _mesh(self, seen: Observed) -> str | None:
        nics = seen.nics()
        edges = sum(host.edges for host in seen.hosts.values())
        edges_up = sum(host.edges_up for host in seen.hosts.values())
        if not all(nic.connected for _, nic in nics) or edges == 0 or edges_up < edges:
            return None
        return f"{len(nics)} NICs connected, {edges_up} of {edges} edges up"

    def _traffic(self, seen: Observed) -> str | None:
        used = self.fleet.devices[: self.setting.job.rails]
        nics = [(host, nic) for host, nic in seen.nics() if nic.device in used]
        if seen.workload.rounds == 0 or not all(
            self.carries(seen, host.name, nic.device) for host, nic in nics
        ):
            return None
        rates = [nic.bytes_per_s or 0.0 for _, nic in nics]
        return f"{seen.workload.rounds} rounds done, a NIC moves {min(rates) / 1e6:.0f} to {max(rates) / 1e6:.0f} MB/s"

    def _collectives(self, seen: Observed) -> str | None:
        rates = [host.collective_bytes_per_s for host in seen.hosts.values()]
        known = [rate for rate in rates if rate]
        if len(known) < len(rates):
            return None
        return f"a collective moves {min(known) / 1e6:.0f} to {max(known) / 1e6:.0f} MB/s a rank"

    def _baseline(self, seen: Observed) -> str | None:
        if self._traffic(seen) is None or self._mesh(seen) is None or self._clocks(seen) is None:
            seen.marks.pop("baseline", None)
            return None
        now = seen.workload.bandwidth.last_at
        if now is None:
            return None
        start = seen.marks.setdefault("baseline", now)
        values = seen.workload.bandwidth.between(start, now)
        if now - start < BASELINE_S or not values:
            return None
        seen.marks["baseline_mean"] = sum(values) / len(values)
        return f"bus bandwidth {sum(values) / len(values) / 1e6:.0f} MB/s over {now - start:.0f} s"

    def carries(self, seen: Observed, host: str, device: str) -> bool:
        """Whether a NIC moves its share of the ring."""
        rates = {nic.device: nic.bytes_per_s for nic in seen.hosts[host].nics.values()}
        rate = rates[device]
        busiest = max((r for r in rates.values() if r is not None), default=0.0)
        return rate is not None and rate > IDLE_BYTES_PER_S and rate >= CARRIES_SHARE * busiest

    def bandwidth(self, observed: Observed, start: str, end: float | None) -> float | None:
        """Mean bus bandwidth from a mark to a moment, bytes per second; None without one of them."""
        begin = observed.marks.get(start)
        if begin is None or end is None:
            return None
        return mean(observed.workload.bandwidth.between(begin, end))
