"""What jobs that share a link would do if one of them had another link: a closed queueing model. Pure.

A job sends a message, waits for its peers or computes, sends the next one. While it is busy with sending it has its
share of the link, max-min fair by weight among those that are busy at that moment; what passes between two messages no
link makes shorter. So a job that is busy for only a part of the time leaves room to the others, and gains less from a
link of its own: two that are always busy gain 2, two that are busy for 0.8 of the time 1.5. (Amdahl's law, with the
share of a processor-sharing server of few customers: Lazowska et al., Quantitative System Performance, ch. 6.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

# So many others are enumerated; of more the mean is good enough.
_ENUMERATED = 6
_ROUNDS = 100
_CLOSE = 1e-6
_LEAST_BUSY = 0.01


@dataclass(frozen=True)
class Sender:
    """A job on one link. goodput : bytes per second over all time. busy : part of the time in which it sends."""

    goodput: float
    busy: float

    @property
    def rate(self) -> float:
        """Bytes per second while it sends, which is also its weight among those that share the link."""
        return self.goodput / max(self.busy, _LEAST_BUSY)

    @property
    def elsewhere_s(self) -> float:
        """Seconds a byte that no link makes shorter."""
        return (1.0 - self.busy) / self.goodput


def capacity_of(senders: Sequence[Sender]) -> float:
    """Bytes per second of the link that they share, by what each got of it while it was busy."""
    busy = [sender.busy for sender in senders]
    weights = [sender.rate for sender in senders]
    estimates = [weights[i] / _share(i, weights, busy) for i in range(len(senders))]
    return sum(estimates) / len(estimates)


def goodputs(senders: Sequence[Sender], capacity: float) -> list[float]:
    """Goodput of each on a link of `capacity` that only these share, in bytes per second."""
    weights = [sender.rate for sender in senders]
    busy = [sender.busy for sender in senders]
    found = [sender.goodput for sender in senders]
    for _ in range(_ROUNDS):
        before = found
        found = []
        for i, sender in enumerate(senders):
            sending_s = 1.0 / (capacity * _share(i, weights, busy))
            found.append(1.0 / (sending_s + sender.elsewhere_s))
            # Halfway: what one gives up the others take, and back again.
            busy[i] = (busy[i] + sending_s * found[i]) / 2
        if all(abs(a - b) <= _CLOSE * a for a, b in zip(found, before, strict=True)):
            break
    return found


def gain_apart(senders: Sequence[Sender], mover: int, limit: float = float("inf")) -> float:
    """Goodput of all afterwards by now, when `mover` gets a link like this one for itself.

    limit : what it can send at most whatever the link, such as its NIC. At least 1.
    """
    capacity = capacity_of(senders)
    before = sum(goodputs(senders, capacity))
    others = [sender for i, sender in enumerate(senders) if i != mover]
    after = goodputs(others, capacity) + goodputs([senders[mover]], min(capacity, limit))
    return max(1.0, sum(after) / before)


def gain_of_rate(busy: float, faster: float) -> float:
    """Goodput of a job afterwards by now, when what it sends goes `faster` times as fast. busy : see Sender."""
    return 1.0 / (busy / faster + 1.0 - busy)


def _share(i: int, weights: Sequence[float], busy: Sequence[float]) -> float:
    """Expected part of the link that sender `i` has while it is busy; the others are busy independently."""
    own = weights[i]
    others = [(w, min(1.0, b)) for k, (w, b) in enumerate(zip(weights, busy, strict=True)) if k != i]
    if len(others) > _ENUMERATED:
        return own / (own + sum(w * b for w, b in others))
    expected = 0.0
    for active in product((False, True), repeat=len(others)):
        chance = prod(b if on else 1.0 - b for (_, b), on in zip(others, active, strict=True))
        expected += chance * own / (own + sum(w for (w, _), on in zip(others, active, strict=True) if on))
    return expected
