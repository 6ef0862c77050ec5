"""How much is known of the delays of a fleet. Pure."""

from dataclasses import dataclass

# A pair is known after so many slots of time, and longer than before when it was so in the last so many.
LEAST_SLOTS = 3
# Pairs that are kept, at most: 100,000 NICs with ten peers. 120 bytes each, and their names.
MOST_PAIRS = 500_000


@dataclass(frozen=True)
class Coverage:
    """What there is. hosts : that have reported their edges lately; silent : of these, without any delay lately. pairs
    : of NICs, their edges. without_delays : of these, of which no end reports a delay; one_way : one end alone does;
    young : of fewer slots or samples than needed; known : the rest. refused : edges beyond MOST_PAIRS.
    """

    hosts: int = 0
    silent: int = 0
    pairs: int = 0
    without_delays: int = 0
    one_way: int = 0
    young: int = 0
    known: int = 0
    refused: int = 0
