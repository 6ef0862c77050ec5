"""Configuration of `fabricpulse nic`. Flags have precedence over the file, the file over these defaults."""

import re

from fabricpulse.core.config import Section
from fabricpulse.nic.registry import registered
from fabricpulse.nic.sections import DeviceSection, ExpectedSection, FlapSection, GidSection, NcclSection


class NicConfig(Section, frozen=True):
    """The whole file.

    collectors : collectors to switch on (true) or off, by name, over the defaults. raw_counters : export the drivers'
    own counter names too. networks : RDMA device or netdev -> network (rail) that it belongs to. read_timeout_s :
    how long one device may take in a scrape before it is left behind, seconds.
    """

    collectors: dict[str, bool] = {}
    device: DeviceSection = DeviceSection()
    raw_counters: bool = False
    networks: dict[str, str] = {}
    gid: GidSection = GidSection()
    nccl: NcclSection = NcclSection()
    flaps: FlapSection = FlapSection()
    expected: ExpectedSection = ExpectedSection()
    read_timeout_s: float = 2.0
    # Largest number of samples in one exposition.
    sample_cap: int = 20_000

    def validate(self) -> None:
        for name in self.collectors:
            if name not in registered():
                raise ValueError(f"unknown collector {name!r}; known: {', '.join(sorted(registered()))}")
        for key in ("include", "exclude"):
            try:
                re.compile(getattr(self.device, key))
            except re.error as error:
                raise ValueError(f"device.{key} is not a regular expression: {error}") from error
        if self.read_timeout_s <= 0:
            raise ValueError("read_timeout_s must be above 0")
        if self.sample_cap < 1:
            raise ValueError("sample_cap must be at least 1")
