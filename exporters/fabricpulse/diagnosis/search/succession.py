"""Whose flows still suffer from what was named before. Pure.

As a fault ends its flows recover one by one, and as a cable after the other dies it grows: what is left, or what was
there first, looks like another component for some seconds. Flows are numbers that stand for the same flow for as long
as its host has the same peers.
"""

from dataclasses import dataclass

import numpy as np

from fabricpulse.diagnosis.flows.flow_table import Flows

# What suffers from a named component for so long after it was last found is no evidence of another one before that.
KEPT_S = 15.0
# Share of its flows that make one component a part of another.
_PART = 0.9

Key = tuple[str, str, str, str]
"""What, kind, component, peer."""


@dataclass(frozen=True)
class _Named:
    """owned : more flows that it was found to suffer on a short while ago, and when."""

    at_s: float
    flows: Flows
    owned: Flows
    owned_s: float


class Succession:
    """Of one fleet."""

    def __init__(self) -> None:
        self._named: dict[Key, _Named] = {}

    def name(self, key: Key, flows: Flows, now_s: float) -> None:
        """The component is reported now, and suffers on these flows."""
        old = self._named.get(key)
        # As it ends its parts explain more, second by second, and leave it some flows.
        if old is not None and 2 * len(flows) < len(old.owned) and now_s - old.owned_s <= KEPT_S:
            self._named[key] = _Named(now_s, flows, old.owned, old.owned_s)
        else:
            self._named[key] = _Named(now_s, flows, flows, now_s)

    def forget(self, now_s: float) -> None:
        """What is over for long."""
        self._named = {key: one for key, one in self._named.items() if now_s - one.at_s <= KEPT_S}

    def remains(self, key: Key, flows: Flows) -> bool:
        """Whether nearly all of these flows suffered already when something else was named for the same."""
        others = [one for other, one in self._named.items() if other != key and other[0] == key[0]]
        owned = [flows for one in others for flows in (one.flows, one.owned)]
        return bool(owned) and is_part(flows, np.concatenate(owned))

    def swallowed(self, key: Key, flows: Flows) -> bool:
        """Whether nearly all flows on which the component was named are among these."""
        one = self._named.get(key)
        return one is not None and is_part(one.flows, flows)


def is_part(flows: Flows, of: Flows) -> bool:
    """Whether nearly all are there."""
    return bool(len(flows)) and float(np.isin(flows, of).mean()) >= _PART
