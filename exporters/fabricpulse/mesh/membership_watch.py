"""Which membership is in force: what its source says, unless it has lost too many hosts at once."""

import time

from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.log import get_logger
from fabricpulse.mesh.config import MembershipSource
from fabricpulse.mesh.membership_source import MembershipReader
from fabricpulse.mesh.shrink_guard import ShrinkGuard

log = get_logger(__name__)


class MembershipWatch:
    """Follows the source. current : the membership in force, None before the first; its owner sets it."""

    def __init__(self, source: MembershipSource) -> None:
        self._source = source
        self._reader = MembershipReader(source)
        self._shrink_guard = ShrinkGuard(source.max_shrink, source.shrink_hold_s)
        self._held: Membership | None = None  # read, and not yet accepted
        self._error = ""  # what was last logged
        self.current: Membership | None = None

    @property
    def holds(self) -> bool:
        """Whether a membership is held back."""
        return self._shrink_guard.holds

    def confirm(self) -> None:
        """The next membership is accepted, however small."""
        self._shrink_guard.confirm()

    async def first(self) -> Membership | None:
        """The membership, None when it cannot be had yet: `changed` goes on trying. A bad file is refused at once."""
        try:
            return await self._reader.read()
        except ConfigError:
            raise
        except UserError as error:
            self._error = str(error)
            log.warning(
                "no membership yet; nothing is probed until there is one",
                error=str(error),
                retry_s=self._source.refresh_s,
            )
            return None

    async def changed(self) -> Membership | None:
        """One to put in force in place of the current, or None. Raises UserError where the source cannot be used."""
        membership = await self._reader.read() or self._held
        # Also of one that is in force: what was held before it came is then forgotten.
        if membership is None or not self._admits(membership) or membership == self.current:
            return None
        return membership

    def succeeded(self) -> None:
        """The membership in force is what it should be."""
        self._error = ""

    def failed(self, error: Exception) -> None:
        """What is in force stays; the same error is logged once."""
        if str(error) != self._error:
            have = self.current is not None
            log.error("the membership stays as it was" if have else "still no membership", error=str(error))
        self._error = str(error)

    def _admits(self, membership: Membership) -> bool:
        """Whether it is accepted. One that is not is kept, and requested again: its source returns it only once."""
        before, after = (
            frozenset(host.name for host in known.hosts) if known is not None else frozenset[str]()
            for known in (self.current, membership)
        )
        held_before = self._shrink_guard.holds
        admitted = self._shrink_guard.admit(before, after, time.monotonic())
        self._held = None if admitted else membership
        if self._shrink_guard.holds and not held_before:
            log.error(
                "the membership has lost many hosts at once and is held back; SIGHUP confirms it",
                lost=len(before - after),
                of=len(before),
                hold_s=self._source.shrink_hold_s,
            )
        return admitted
