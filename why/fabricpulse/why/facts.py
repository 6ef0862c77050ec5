"""What is known of a job at a moment. Plain values: `None` is "not known", never 0.

Rates are per second over the query window, `*_before` the same quantity in the baseline (usually an hour earlier).
Bytes and seconds throughout; a device is a netdev, as everywhere.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class NicId(NamedTuple):
    """One NIC of one host."""

    host: str
    device: str

    def __str__(self) -> str:
        return f"{self.device} of {self.host}"


@dataclass(frozen=True)
class Flow:
    """All queue pairs (or sockets) of the job from one NIC to another.

    delay_s, floor_s : median and 10 % quantile of the chunks' one-way delay; those before, of the baseline. probe_s :
    median one-way delay of probes between the same NICs, the slower direction. marked, retransmits : per second, of
    sockets; drivers count them for the port alone (Nic).
    """

    source: NicId
    target: NicId
    sent: float | None = None
    sent_before: float | None = None
    delay_s: float | None = None
    delay_before_s: float | None = None
    floor_s: float | None = None
    probe_s: float | None = None
    marked: float | None = None
    retransmits: float | None = None
    floor_before_s: float | None = None

    def __str__(self) -> str:
        return f"{self.source} to {self.target}"


@dataclass(frozen=True)
class Nic:
    """One NIC of a host of the job.

    connected : by the mesh. disconnects, link_downs, failovers : counted in the window. speed : of the link, bytes
    per second. transmitted : everything that the NIC sends, of any sender. loss_in, loss_out : share of probes.
    lossy_edges, edges : edges that lose more than 0.5 %, without those to NICs that were gone, and all. drops :
    packets that the host did not take, per second. pause_sent, pause_received, pcie_stalled : share of time.
    pcie_share : of the PCIe bandwidth that card and slot can do. avoided : processes that remediation keeps off it.
    slowed, marked, resent : per second, what drivers count of RDMA for the port: notifications that slowed it as a
    sender, marked packets that have arrived, packets sent again.
    """

    id: NicId
    network: str = ""
    connected: bool | None = None
    disconnects: float | None = None
    link_downs: float | None = None
    failovers: float | None = None
    speed: float | None = None
    speed_before: float | None = None
    transmitted: float | None = None
    transmitted_before: float | None = None
    loss_in: float | None = None
    loss_out: float | None = None
    lossy_edges: float | None = None
    edges: float | None = None
    drops: float | None = None
    pause_sent: float | None = None
    pause_received: float | None = None
    pcie_stalled: float | None = None
    pcie_share: float | None = None
    avoided: float | None = None
    slowed: float | None = None
    marked: float | None = None
    resent: float | None = None


@dataclass(frozen=True)
class Rank:
    """One rank of one communicator, as NCCL's profiler tells it.

    operations : collectives that have ended since the start (a sequence number). rate : of those, per second.
    duration_s : mean time in a collective, over all collectives of the window, duration_before_s in the baseline.
    in_progress : started, not ended. still_s : for how long nothing of it had ended when that was recorded, where it
    is known better than by a rate of 0.
    """

    communicator: str
    rank: int
    host: str
    ranks: int | None = None
    operations: float | None = None
    rate: float | None = None
    rate_before: float | None = None
    duration_s: float | None = None
    in_progress: float | None = None
    duration_before_s: float | None = None
    still_s: float | None = None


@dataclass(frozen=True)
class Collective:
    """One kind of collective over the whole job.

    rate : per second, of one rank on average. bandwidth : payload of one rank by duration. size : bytes of one
    operation. siblings : median bandwidth of other jobs with messages of the same class of size, at least two.
    """

    name: str
    rate: float | None = None
    rate_before: float | None = None
    bandwidth: float | None = None
    bandwidth_before: float | None = None
    busy_share: float | None = None
    size: float | None = None
    size_before: float | None = None
    siblings: float | None = None


@dataclass(frozen=True)
class Clock:
    """Fleet time of one host. disruptions : times in the window that something contradicted it."""

    host: str
    synchronized: bool | None = None
    bound_s: float | None = None
    disruptions: float | None = None
    suspect: bool | None = None


@dataclass(frozen=True)
class Wait:
    """The oldest unfinished request of one rank towards another; waits_for : as the exporter says it. channel : NCCL's,
    "" when unknown. missing_bytes : that have not got through; None: not known."""

    host: str
    rank: int | None
    peer: str
    peer_rank: int | None
    waits_for: str
    age_s: float
    channel: str = ""
    missing_bytes: int | None = None


@dataclass(frozen=True)
class Process:
    """One process of the job. heartbeat_age_s : since its plugin last gave a sign of life, normally below 2."""

    host: str
    rank: int | None
    heartbeat_age_s: float


@dataclass(frozen=True)
class MissingRank:
    """A rank of which NCCL's RAS has received nothing. dead : RAS has given it up; else it did not answer in time."""

    communicator: str
    rank: int
    host: str
    pid: int
    dead: bool


@dataclass(frozen=True)
class Gpu:
    """One GPU, from dcgm-exporter. clock : share of the median SM clock of the job's GPUs. throttled : by hardware or
    heat."""

    host: str
    gpu: str
    clock: float | None = None
    throttled: bool | None = None


@dataclass(frozen=True)
class Host:
    """One host that runs the job, or ran it in the baseline.

    processes : of the job with the plugin. exporters : components that answered in the window. dead : processes that
    were killed or have crashed in the window, or not long before.
    """

    name: str
    processes: float | None = None
    processes_before: float | None = None
    exporters: frozenset[str] = frozenset()
    dead: float | None = None


@dataclass(frozen=True)
class Origin:
    """What the scheduler calls the job. nodes : None where it is not said. proven : by the cgroups of processes, not by
    what they say. hosts : on which this is seen."""

    slurm_job: str
    user: str
    account: str
    nodes: int | None
    proven: bool
    hosts: int


@dataclass(frozen=True)
class Facts:
    """Everything that is known of one workload at one moment.

    window_s : over which rates and counts are. other_slow_flows : slow flows of other jobs now, by workload; None when
    nobody has recorded them. other_slow_before : workloads that had some in the baseline. mismatches : collectives of
    one number that ranks call by different names. missing : ranks that RAS does not hear; rank_errors : what ranks
    report to it, in sentences. limits : what a source that was asked cannot know, in sentences. started_s : of the
    oldest process, since 1970. whole : whether it ran during all of both windows, as far as is known: what is counted a
    second is compared then alone. gone_s : when its last process was seen, where it has none any more; silent_s : since
    when nothing of it is known. unmoved_s : for how long no rank has ended a collective, where that is less than the
    window. partial : the backend has warned that it does not answer with all it has. scraped : host -> when what is
    known of its processes was read, since 1970. undumped : ranks that have left no dump. leaves : NIC, as
    it is written -> its switch, as far as the coordinator was asked and knows it. workloads : what there is
    instead, where no host runs this one.
    """

    workload: str
    at_s: float
    window_s: float = 120.0
    hosts: tuple[Host, ...] = ()
    nics: tuple[Nic, ...] = ()
    flows: tuple[Flow, ...] = ()
    ranks: tuple[Rank, ...] = ()
    collectives: tuple[Collective, ...] = ()
    clocks: tuple[Clock, ...] = ()
    waits: tuple[Wait, ...] = ()
    processes: tuple[Process, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    other_slow_flows: dict[str, tuple[Flow, ...]] | None = None
    other_slow_before: frozenset[str] = frozenset()
    mismatches: tuple[str, ...] = ()
    missing: tuple[MissingRank, ...] = ()
    rank_errors: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    started_s: float | None = None
    whole: bool = True
    gone_s: float | None = None
    silent_s: float | None = None
    unmoved_s: float | None = None
    partial: bool = False
    scraped: dict[str, float] = field(default_factory=dict)
    undumped: tuple[int, ...] = ()
    workloads: tuple[str, ...] = ()
    leaves: dict[str, str] = field(default_factory=dict)
    bandwidth_history: tuple[tuple[float, float], ...] = field(default=())
    pace_history: tuple[tuple[float, float], ...] = field(default=())
