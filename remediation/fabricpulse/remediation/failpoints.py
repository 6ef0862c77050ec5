"""Named places at which a test may have the process killed: FABRICPULSE_FAILPOINT=name:n kills it at the n-th visit.

The promise "no second and no lost action" is about being killed between two instructions; only the program itself can
die exactly there. Without the variable a visit costs one comparison.
"""

import os
import signal

_ENV = "FABRICPULSE_FAILPOINT"
_NAME, _, _COUNT = os.environ.get(_ENV, "").partition(":")
_left = int(_COUNT) if _COUNT.isdigit() else 1


def reach(name: str) -> None:
    """Dies by SIGKILL if the test asked for it."""
    if name != _NAME:
        return
    global _left  # noqa: PLW0603 - one counter a process is the point
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
