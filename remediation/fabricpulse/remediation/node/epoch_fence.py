"""Which receivers an agent follows: none with a lower epoch than one it has seen."""

from collections.abc import Callable

from fabricpulse.core.log import get_logger

log = get_logger(__name__)

# Epochs are seconds since 1970. One that is further ahead of this host's clock comes from a clock that was wrong.
_SANE_AHEAD_S = 86_400.0


class EpochFence:
    """The highest sane epoch that was accepted. One from far in the future is not kept: it would fence for ever."""

    def __init__(self, epoch: int, clock: Callable[[], float]) -> None:
        """epoch : as the journal has it. clock : seconds since 1970."""
        self._clock = clock
        self._insane_logged = False
        self.epoch = epoch if self._is_sane(epoch) else 0

    def admits(self, epoch: int) -> bool:
        """Whether to follow a receiver of this epoch; if so, and if it is sane, none with a lower one from now on."""
        if epoch < self.epoch:
            log.error(
                "receiver has an older epoch than one seen before, ignored", epoch=epoch, seen=self.epoch
            )
            return False
        if self._is_sane(epoch):
            self.epoch = epoch
        return True

    def _is_sane(self, epoch: int) -> bool:
        sane = epoch <= self._clock() + _SANE_AHEAD_S
        if not sane and not self._insane_logged:
            self._insane_logged = True
            log.error(
                "epoch of the receiver is from the future: a clock is wrong, here or there", epoch=epoch
            )
        return sane
