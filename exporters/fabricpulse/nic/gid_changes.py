"""Whether a GID table may have changed: link, address and verbs events say it, the GID collector asks."""

# GIDs are registered by a work queue some time after the event that causes it.
SETTLE_S = 5.0


class GidChanges:
    """Devices whose tables may change in the next seconds. Safe from any thread: single values are set and read."""

    def __init__(self) -> None:
        self._unsettled_until: dict[str, float] = {}

    def touch(self, rdma_device: str, now: float) -> None:
        """Says that the tables of a device may change within SETTLE_S. now : monotonic seconds."""
        self._unsettled_until[rdma_device] = now + SETTLE_S

    def is_unsettled(self, rdma_device: str, now: float) -> bool:
        """Whether its tables may still change.

        True once more after the time is over, so that the last change is seen.
        """
        until = self._unsettled_until.get(rdma_device)
        if until is None:
            return False
        if now >= until:
            self._unsettled_until.pop(rdma_device, None)
        return True
