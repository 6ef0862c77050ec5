"""What the coordinator logs of its fleet: what has changed, once, and not what is, round by round."""

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.core.log import get_logger

log = get_logger(__name__)

# Hosts that one solve makes suspect are named up to this many.
_SUSPECTS = 20
# And of those whose leases ran out.
_EXPIRED = 5


class FleetLog:
    """Of `fleet`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._awaited: tuple[str, ...] = ()
        self._suspects: dict[str, str] = {}
        self._first_s: float | None = None
        self._had_quorum = False
        self._lost_s: float | None = None

    def round_solved(self, now_s: float) -> None:
        """To be called after each round of the fleet, with the same time."""
        self._log_awaited()
        self._log_expired()
        self._log_quorum(now_s)
        self._log_suspects()

    def _log_awaited(self) -> None:
        """Logs whom a fleet without fleet time waits for, and when it gives up."""
        awaited, before = self._fleet.awaited, self._awaited
        self._awaited = awaited
        if awaited and not before:
            log.info("fleet time begins when these hosts say how far they are from UTC", hosts=awaited)
        elif before and not awaited and self._fleet.quorum is not None and not self._fleet.quorum.anchored:
            log.warning(
                "fleet time has begun without UTC, and will slew to it for hours once an anchor carries it: none of "
                "the hosts with anchor.kind system or reference is synchronized; see their sidecars' logs",
                hosts=before,
                waited_s=self._fleet.anchor_wait_s,
            )

    def _log_expired(self) -> None:
        """Logs who has not reported for so long that it is no member any more."""
        expired = self._fleet.expired
        if expired:
            log.warning(
                "hosts no longer report: is their sidecar running, and does it reach this coordinator?",
                hosts=len(expired),
                first=expired[:_EXPIRED],
                silent_s=self._fleet.lease_s,
                left=len(self._fleet.roster.members),
            )

    def _log_quorum(self, now_s: float) -> None:
        """Logs when what reports here can no longer speak for the fleet, and when it can again."""
        fleet = self._fleet
        if self._first_s is None:
            self._first_s = now_s
        if fleet.quorum is None:
            return
        if not fleet.no_quorum:
            if self._lost_s is not None:
                log.info(
                    "quorum regained",
                    hosts=fleet.quorum.hosts,
                    root=fleet.quorum.root,
                    after_s=round(now_s - self._lost_s, 1),
                )
            self._had_quorum, self._lost_s = True, None
        # After a start the hosts come one by one: until all had time to, too few are no loss.
        elif self._lost_s is None and (self._had_quorum or now_s - self._first_s > fleet.lease_s):
            self._lost_s = now_s
            log.warning(
                "quorum lost: most of the fleet, or every anchor, is unreachable; the hosts of this partition are in "
                "holdover. If the others will not return, restart all sidecars of this partition, then its "
                "coordinators",
                hosts=fleet.voting_members(now_s),
                were=fleet.quorum.hosts,
                carried_utc=fleet.quorum.anchored,
                root=fleet.quorum.root,
            )

    def _log_suspects(self) -> None:
        """Logs once who is suspect, why, and when that is over."""
        suspects, before = self._fleet.suspects(), self._suspects
        self._suspects = suspects
        changed = [name for name, reason in suspects.items() if before.get(name) != reason]
        over = [name for name in before if name not in suspects and name in self._fleet.roster.members]
        for name in changed[:_SUSPECTS]:
            log.warning("host suspected of being faulty", member=name, reason=suspects[name])
        for name in over[:_SUSPECTS]:
            log.info("host no longer suspected", member=name)
        if (more := max(len(changed), len(over)) - _SUSPECTS) > 0:
            log.warning("more hosts changed: see `fabricpulse clocksync status`", hosts=more)
