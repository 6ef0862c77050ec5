"""Configuration of the outputs."""

from typing import Annotated

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import WRITTEN_FILE


class OutputsConfig(Section, frozen=True):
    """Who else on this host gets fleet time. The host clock itself is never steered from here.

    clockbound : file of a ClockBound v2 segment; "" = `<run>/clockbound`, "off" = none; clients look at
    /var/run/clockbound/shm0 by default. chrony_sock : socket of chronyd's `refclock SOCK`. ntp_shm_unit : unit of
    chronyd's or ntpd's `refclock SHM`, -1 = none.
    """

    clockbound: Annotated[str, WRITTEN_FILE] = ""
    chrony_sock: Annotated[str, WRITTEN_FILE] = ""
    ntp_shm_unit: Annotated[int, Meta(ge=-1, le=255)] = -1
