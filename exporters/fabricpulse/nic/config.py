"""Configuration of `fabricpulse nic`. Flags have precedence over the file, the file over these defaults."""

import ipaddress
import re
from typing import Literal

from fabricpulse.core.config import Section

COLLECTORS = (
    "infiniband",
    "netdev",
    "gid",
    "pcie",
    "bonding",
    "flaps",
    "ethtool",
    "dcb",
    "resources",
    "queue_pairs",
    "module",
    "kernel_log",
    "verbs",
)
# On request: reading a module's EEPROM goes over a slow two-wire bus and needs CAP_NET_ADMIN; a host in use has tens of
# thousands of queue pairs to go through.
OFF_BY_DEFAULT = frozenset({"module", "queue_pairs"})


class DeviceSection(Section, frozen=True):
    """Which devices are exported: regular expressions that an RDMA device's or netdev's name must match wholly."""

    include: str = ""
    exclude: str = ""


class GidSection(Section, frozen=True):
    """The GID table.

    refresh_seconds : how often it is read without a reason; link and address events are one. max_info : entries that
    are exported one by one.
    """

    refresh_seconds: float = 300.0
    max_info: int = 64

    def validate(self) -> None:
        if self.refresh_seconds < 0:
            raise ValueError("refresh_seconds must not be negative")
        if self.max_info < 0:
            raise ValueError("max_info must not be negative")


class NcclSection(Section, frozen=True):
    """What the jobs of this host set in NCCL's environment, for the GID index that NCCL would use.

    gid_index : NCCL_IB_GID_INDEX. address_family, address_range, roce_version : NCCL_IB_ADDR_FAMILY, _ADDR_RANGE,
    NCCL_IB_ROCE_VERSION_NUM.
    """

    gid_index: int = -1
    address_family: Literal["AF_INET", "AF_INET6"] = "AF_INET"
    address_range: str = ""
    roce_version: Literal[1, 2] = 2

    def validate(self) -> None:
        if not self.address_range:
            return
        try:
            network = ipaddress.ip_network(self.address_range, strict=False)
        except ValueError as error:
            raise ValueError(f"address_range: {error}") from error
        if "/" not in self.address_range:
            raise ValueError(
                f"address_range {self.address_range!r} has no prefix length, so NCCL ignores it;"
                f" write {network} or leave it out"
            )
        if (network.version == 6) != (self.address_family == "AF_INET6"):
            raise ValueError(
                f"address_range {self.address_range!r} is not of address_family {self.address_family},"
                " so NCCL ignores it; set address_family to match or leave the range out"
            )


class FlapSection(Section, frozen=True):
    """Flaps. event_log : file of JSON lines; empty: nic-events.jsonl in the run directory; "none": no file."""

    event_log: str = ""
    event_log_max_bytes: int = 16 << 20
    holdoff_poll_seconds: float = 0.01

    def validate(self) -> None:
        if self.event_log_max_bytes < 1 << 16:
            raise ValueError("event_log_max_bytes must be at least 65536")
        if not 0.001 <= self.holdoff_poll_seconds <= 1:
            raise ValueError("holdoff_poll_seconds must be between 0.001 and 1")


class NicConfig(Section, frozen=True):
    """The whole file.

    collectors : those to run, by name, over the defaults. raw_counters : export the drivers' own counter names too.
    networks : RDMA device or netdev -> network (rail) that it belongs to. stall_seconds : how long one device may take.
    """

    collectors: dict[str, bool] = {}
    device: DeviceSection = DeviceSection()
    raw_counters: bool = False
    networks: dict[str, str] = {}
    gid: GidSection = GidSection()
    nccl: NcclSection = NcclSection()
    flaps: FlapSection = FlapSection()
    stall_seconds: float = 2.0
    # Largest number of samples in one exposition.
    sample_cap: int = 20_000

    def validate(self) -> None:
        for name in self.collectors:
            if name not in COLLECTORS:
                raise ValueError(f"unknown collector {name!r}; known: {', '.join(COLLECTORS)}")
        for key in ("include", "exclude"):
            try:
                re.compile(getattr(self.device, key))
            except re.error as error:
                raise ValueError(f"device.{key} is not a regular expression: {error}") from error
        if self.stall_seconds <= 0:
            raise ValueError("stall_seconds must be above 0")
        if self.sample_cap < 1:
            raise ValueError("sample_cap must be at least 1")
