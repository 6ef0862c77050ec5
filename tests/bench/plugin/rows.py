"""Rows of the bench of the NCCL plugin, and the order of those that are compared."""

from tests.bench.rows import Rows

rows = Rows("plugin")
report = rows.report


def in_turn(names: list[str], number: int) -> list[str]:
    """Forwards and backwards by turns, so that a drift of the machine's speed favours nobody."""
    return names if number % 2 == 0 else names[::-1]
