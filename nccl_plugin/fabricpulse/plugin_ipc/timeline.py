"""What a qp exporter answers of single collectives and state changes: `/api/v1/timeline`, as JSON."""

import msgspec


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """A collective, send or receive of one rank that has ended.

    number : NCCL's, of this function in this communicator; 0 for sends and receives. end_ns : since 1970, on fleet time
    with this bound; the host's clock where bound_ns is negative. took_ns : from the first of its parts to the last.
    """

    communicator: str
    number: int
    function: str
    rank: int
    end_ns: int
    bound_ns: int
    took_ns: int
    size: int

    @property
    def start_ns(self) -> int:
        """On the clock of `end_ns`."""
        return self.end_ns - self.took_ns

    @property
    def is_comparable(self) -> bool:
        """Whether it is on fleet time."""
        return self.bound_ns >= 0


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A state change of a lane or NIC. at_ns, bound_ns : as of Operation. device, peer, peer_device : "" for none."""

    kind: str
    reason: str
    at_ns: int
    bound_ns: int
    device: str
    peer: str
    peer_device: str
    value: int


class ProcessTimeline(msgspec.Struct, frozen=True):
    """Of one process. rank : the launcher's, None when unknown. Oldest first."""

    workload: str
    rank: int | None
    pid: int
    operations: list[Operation] = []
    changes: list[Change] = []


class HostTimeline(msgspec.Struct, frozen=True):
    """`/api/v1/timeline` of one host. cut : it had more than it returned."""

    host: str
    processes: list[ProcessTimeline] = []
    cut: bool = False
