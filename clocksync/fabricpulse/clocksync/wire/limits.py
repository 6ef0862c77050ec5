"""Limits of what sidecars and coordinators may be configured to, so that neither can mislead the other."""

from typing import Annotated

from msgspec import Meta

# Bounds grow with these, as integers of 64 bits in the clock page. No clock of a computer is worse than 1 % off.
DriftPpb = Annotated[float, Meta(gt=0, le=10_000_000)]
HoldoverDriftPpb = Annotated[int, Meta(ge=1, le=10_000_000)]
# A host that has been silent for 2.5 s does not vote (Fleet.stale_s), and must not lose its vote between two rounds.
MAX_ROUND_S = 2.0
# How long a host's word for a root counts after the quorum that it is of, by moments, which are whole seconds. At the
# longest round one reply may be lost.
NAMED_S = 5
