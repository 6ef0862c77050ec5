"""Fixtures of the tests of whole fleets."""

from tests.integration.clocksync.daemons import daemons, fleet

__all__ = ["daemons", "fleet"]
