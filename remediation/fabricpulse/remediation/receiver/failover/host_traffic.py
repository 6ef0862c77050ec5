"""What the jobs of each host have carried lately, as its agent counts it: in memory, unknown after a start. Pure."""

from array import array
from collections.abc import Collection

# Of each host: received at, agent's clock, bytes; so many, so far apart.
_SAMPLES = 120
SPACING_S = 2.5


class HostTraffic:
    """Counters of all hosts. Rates are bytes per second over all NICs, both directions."""

    def __init__(self) -> None:
        self._spacing_s = SPACING_S
        self._hosts: dict[str, array[float]] = {}

    def measure_over(self, window_s: float) -> None:
        """Rates are of spans of this length. Half of one must be known wherever it begins: of a short one, samples that
        are a few seconds apart leave that to chance."""
        self._spacing_s = min(SPACING_S, window_s / 8)

    def add(self, host: str, at_s: float, carried: float, now: float) -> None:
        """A report, received at `now`. at_s : the agent's clock when it counted; 0 from one that does not count."""
        if at_s <= 0:
            return
        samples = self._hosts.setdefault(host, array("d"))
        if samples and (at_s < samples[-2] or carried < samples[-1] or now < samples[-3]):
            del samples[:]  # the agent, or the receiver's clock, has begun anew
        if samples and (now - samples[-3] < self._spacing_s or at_s <= samples[-2]):
            return
        samples.extend((now, at_s, carried))
        if len(samples) > 3 * _SAMPLES:
            del samples[:3]

    def rate(self, host: str, since: float, until: float) -> float | None:
        """Of this span of time; None where less than half of it is known."""
        samples = self._hosts.get(host, array("d"))
        inside = [i for i in range(0, len(samples), 3) if since <= samples[i] <= until]
        if not inside or samples[inside[-1]] - samples[inside[0]] < (until - since) / 2:
            return None
        return _rate(samples, inside[0], inside[-1])

    def best(self, host: str, window_s: float, until: float) -> float | None:
        """The greatest of all spans of about `window_s` before `until`; None without one."""
        samples, found, begin = self._hosts.get(host, array("d")), None, 0
        for end in range(0, len(samples), 3):
            if samples[end] > until:
                break
            while samples[end] - samples[begin + 3 if begin < end else begin] >= window_s:
                begin += 3
            if samples[end] - samples[begin] >= window_s:
                rate = _rate(samples, begin, end)
                found = rate if found is None else max(found, rate)
        return found

    def keep(self, hosts: Collection[str]) -> None:
        """Forgets all others."""
        self._hosts = {host: samples for host, samples in self._hosts.items() if host in hosts}


def _rate(samples: "array[float]", begin: int, end: int) -> float:
    return (samples[end + 2] - samples[begin + 2]) / (samples[end + 1] - samples[begin + 1])
