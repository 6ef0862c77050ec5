"""Which receivers an agent follows: none with a lower epoch than one it has seen.

Epochs are seconds since 1970, of the receiver's last start, or one more than the one before. A receiver whose signature
the agent has checked is believed for good. Without signatures anybody who answers in the receiver's place for a moment
can name an epoch, and no bound makes that safe: the right receiver may have started weeks ago, so that any time since
fences it. So such a fence holds only while whoever has that epoch goes on answering; for an earlier leader that is
enough, whose answers expire with its lease.
"""

from collections.abc import Callable

from fabricpulse.core.log import get_logger

log = get_logger(__name__)

# An epoch that is further ahead of this host's clock comes from one that was wrong. By whether it is signed: one that
# is not may be anybody's, so no more is believed than clocks may differ (receiver_client.MAX_VALID_S has the same
# allowance). Who signs is to fence for good, unless the clock is absurd.
_SANE_AHEAD_S = {False: 300.0, True: 86_400.0}
# Without an answer of an unsigned epoch for so long it fences nobody: some long polls, and far more than a takeover.
UNSIGNED_HOLD_S = 120.0


class EpochFence:
    """The highest sane epoch that was accepted. One from the future is not kept: it would fence until it comes."""

    def __init__(
        self, epoch: int, clock: Callable[[], float], monotonic: Callable[[], float], *, signed: bool
    ) -> None:
        """epoch : as the journal has it. clock : seconds since 1970. monotonic : seconds. signed : whether the agent
        takes signed answers alone."""
        self._clock = clock
        self._monotonic = monotonic
        self._signed = signed
        self._insane_logged = False
        self.epoch = epoch if self._is_sane(epoch) else 0
        self._answered_at = monotonic()

    def admits(self, epoch: int) -> bool:
        """Whether to follow a receiver of this epoch; if so, and if it is sane, none with a lower one from now on."""
        if epoch < self.epoch:
            if self._signed or self._monotonic() - self._answered_at < UNSIGNED_HOLD_S:
                log.error(
                    "receiver has an older epoch than one seen before, ignored", epoch=epoch, seen=self.epoch
                )
                return False
            log.warning(
                "following a receiver with an older epoch: the newer one does not answer any more. "
                "With receiver_keys nobody could have made it up",
                epoch=epoch,
                seen=self.epoch,
            )
            self.epoch = epoch
        if self._is_sane(epoch):
            self.epoch = epoch
            self._answered_at = self._monotonic()
        return True

    def _is_sane(self, epoch: int) -> bool:
        sane = epoch <= self._clock() + _SANE_AHEAD_S[self._signed]
        if not sane and not self._insane_logged:
            self._insane_logged = True
            log.error(
                "epoch of the receiver is from the future: a clock is wrong, here or there", epoch=epoch
            )
        return sane
