import numpy as np
from numpy.typing import NDArray

def fence() -> None:
    """Loads and stores before it are done, for all processors, before those after it begin."""

def wait_changed(words: NDArray[np.uint64], seen: NDArray[np.uint64], most_s: float) -> bool:
    """Waits until one of `words`, which other processes write, is another than in `seen`, which becomes what they are
    now: True, or False after `most_s` without, or when a signal came. Writers wake the futex at the first word; what
    one does between look and wait is seen after `most_s`. Other threads run meanwhile.
    """

def wake(words: NDArray[np.uint64]) -> None:
    """Ends each `wait_changed` for `words` that is under way."""
