"""Parts of the configuration that collectors are made from."""

import ipaddress
from typing import Annotated, Literal

from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import WRITTEN_FILE
from fabricpulse.hostinfo.gid_rules import NcclRules


class DeviceSection(Section, frozen=True):
    """Which devices are exported.

    include : regular expression that the name of an RDMA device or netdev must match wholly to be exported; empty:
    all. exclude : regular expression of names that are not exported; empty: none.
    """

    include: str = ""
    exclude: str = ""


class GidSection(Section, frozen=True):
    """The GID table.

    refresh_s : how often the GID table is read without a reason, seconds; link and address events are one. max_info :
    number of GID entries that are exported one by one, at most.
    """

    refresh_s: float = 300.0
    max_info: int = 64

    def validate(self) -> None:
        if self.refresh_s < 0:
            raise ValueError("refresh_s must not be negative")
        if self.max_info < 0:
            raise ValueError("max_info must not be negative")


class NcclSection(Section, frozen=True):
    """What the jobs of this host set in NCCL's environment, for the GID index that NCCL would use.

    gid_index : what jobs set NCCL_IB_GID_INDEX to; -1 if they do not. address_family : what jobs set
    NCCL_IB_ADDR_FAMILY to. address_range : what jobs set NCCL_IB_ADDR_RANGE to; empty if they do not. roce_version :
    what jobs set NCCL_IB_ROCE_VERSION_NUM to.
    """

    gid_index: int = -1
    address_family: Literal["AF_INET", "AF_INET6"] = "AF_INET"
    address_range: str = ""
    roce_version: Literal[1, 2] = 2

    def rules(self) -> NcclRules:
        """These settings as input of NCCL's search."""
        network = ipaddress.ip_network(self.address_range, strict=False) if self.address_range else None
        return NcclRules(self.gid_index, self.address_family, network, self.roce_version)

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
    """Link flaps.

    event_log : file of flaps and other link events, JSON lines; empty: nic-events.jsonl in the run directory; "none":
    no file. event_log_max_bytes : size at which the event log is rotated, bytes. holdoff_poll_s : how often carrier
    counts are polled while the kernel holds link events back, seconds.
    """

    event_log: Annotated[str, WRITTEN_FILE] = ""
    event_log_max_bytes: int = 16 << 20
    holdoff_poll_s: float = 0.01

    def validate(self) -> None:
        if self.event_log_max_bytes < 1 << 16:
            raise ValueError("event_log_max_bytes must be at least 65536")
        if not 0.001 <= self.holdoff_poll_s <= 1:
            raise ValueError("holdoff_poll_s must be between 0.001 and 1")


class ExpectedSection(Section, frozen=True):
    """What this host has when it is whole; 0: not checked.

    ports : number of RDMA ports that are active when the host is whole (on a host without RDMA: links of PCI functions
    with a carrier). rate_gbit_s : least rate of each of these ports, Gb/s.
    """

    ports: int = 0
    rate_gbit_s: float = 0.0

    def validate(self) -> None:
        if self.ports < 0 or self.rate_gbit_s < 0:
            raise ValueError("expected.ports and expected.rate_gbit_s must not be negative")
        if self.rate_gbit_s and not self.ports:
            raise ValueError("expected.rate_gbit_s needs expected.ports: how many ports have it")
