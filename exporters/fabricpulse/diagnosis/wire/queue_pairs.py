"""The paths of the queue pairs of jobs, as a mesh exporter tells the coordinator of them. Pure."""

from typing import NamedTuple

import msgspec

MOST_QUEUE_PAIR_FLOWS = 1024  # of a host
MOST_NUMBERS, MOST_WORKLOADS, LONGEST_WORKLOAD = 8, 4, 64
# Source ports of RoCE v2.
LEAST_PORT, MOST_PORT = 0xC000, 0xFFFF


class QueuePairFlow(NamedTuple):
    """The packets that queue pairs of one host send from one source port. device : their NIC. near, far : addresses.
    peer, peer_device : the NIC that has `far`. traffic_class : of the IP header.
    """

    device: str
    near: str
    peer: str
    peer_device: str
    far: str
    port: int
    traffic_class: int


class QueuePairPath(msgspec.Struct, frozen=True, array_like=True):
    """The switches that such packets cross, in order, by the address that each answers with; "" is one that does not
    answer. numbers : some of the queue pairs, own numbers; none: there is no such queue pair any more. workloads : the
    jobs that they belong to. Otherwise as in QueuePairFlow.
    """

    device: str
    peer: str
    peer_device: str
    port: int
    numbers: tuple[int, ...]
    workloads: tuple[str, ...]
    hops: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Which path of a host it is."""
        return self.device, self.peer, self.peer_device, self.port

    def check(self) -> None:
        """Raises ValueError for what no exporter sends. Names and hops are checked as all others."""
        if not LEAST_PORT <= self.port <= MOST_PORT:
            raise ValueError(f"{self.port} is no source port of RoCE v2")
        if not any(self.hops):
            raise ValueError("a path names no switch")
        if len(self.numbers) > MOST_NUMBERS or len(self.workloads) > MOST_WORKLOADS:
            raise ValueError("a path has more queue pairs, or jobs, than an exporter names")
        if any(not 0 <= number < 1 << 24 for number in self.numbers):
            raise ValueError("a queue pair has a number of 24 bits")
        if any(len(workload) > LONGEST_WORKLOAD for workload in self.workloads):
            raise ValueError(f"the name of a job has more than {LONGEST_WORKLOAD} characters")
