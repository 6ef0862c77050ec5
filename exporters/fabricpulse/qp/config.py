"""Configuration of the qp exporter."""

from typing import Annotated

import msgspec

from fabricpulse.core.config import Section
from fabricpulse.core.metrics.exposition import DEFAULT_SAMPLE_CAP

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Worst(Section, frozen=True):
    """The few that are shown by name.

    count : at most so many queue pairs, and so many waiting requests. owd_s : a queue pair is bad above this
    mean one-way delay. waiting_s : a request is old above this age.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 5
    owd_s: Positive = 0.005
    waiting_s: Positive = 1.0


class QpConfig(Section, frozen=True):
    """The whole file.

    interval_s : time between two polls of the telemetry besides those of scrapes. cleanup_after_s : how
    long the files of a process that is gone are kept. forget_after_s : how long the counters of a job are kept
    after its last process on this host. sample_cap : largest number of samples in one exposition.
    """

    interval_s: Positive = 1.0
    cleanup_after_s: Positive = 60.0
    forget_after_s: Positive = 300.0
    worst: Worst = Worst()
    sample_cap: Annotated[int, msgspec.Meta(ge=100)] = DEFAULT_SAMPLE_CAP
