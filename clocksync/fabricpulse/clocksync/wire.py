"""What sidecars and the coordinator say to each other: msgpack arrays, some 40 bytes an edge.

A report is small because names travel once: `HostInfo` goes with the first report, and again when it changes
or when the coordinator says that it does not know it (it keeps nothing on disk).
"""

import msgspec

PROTOCOL = 1
STEP_PATH = "/api/v1/clocksync/step"
LINE_PATH = "/api/v1/clocksync/line"


class NicInfo(msgspec.Struct, frozen=True, array_like=True):
    """A NIC that the host offers to the mesh."""

    device: str
    address: str
    network: str


class EdgeName(msgspec.Struct, frozen=True, array_like=True):
    """Which NIC pair an edge of the reports is."""

    device: str
    peer: str
    peer_device: str


class HostInfo(msgspec.Struct, frozen=True, array_like=True):
    """What changes seldom. url : where this sidecar answers its neighbours."""

    generation: int
    url: str
    nics: tuple[NicInfo, ...]
    edges: tuple[EdgeName, ...]
    anchor: str


class EdgeReport(msgspec.Struct, frozen=True, array_like=True):
    """One edge fit. edge : index into HostInfo.edges; the rest as EdgeFit, times as host clock, rate in
    10^-12.
    """

    edge: int
    t_ns: int
    last_after_ns: int
    offset_ns: int
    rate_ppt: int
    sigma_ns: int
    rate_sigma_ppt: int
    bound_ns: int
    quality: int


class Line(msgspec.Struct, frozen=True, array_like=True):
    """A host's timeline: fleet = host + correction_ns at host time ref_host_ns, true within bound_ns."""

    ref_host_ns: int
    correction_ns: int
    rate_ppt: int
    bound_ns: int


class StepReport(msgspec.Struct, frozen=True, array_like=True):
    """What a sidecar sends each step. host_ns : its host clock when it sent. line : None while it has none.

    anchor : correction and bound by a time source of its own. root : of the last solve it has seen. steps :
    clock steps that the host itself has noticed.
    """

    protocol: int
    host: str
    epoch: int
    generation: int
    host_ns: int
    edges: tuple[EdgeReport, ...]
    line: Line | None
    anchor: tuple[int, int] | None
    root: str
    steps: int
    info: HostInfo | None


class EdgeVerdict(msgspec.Struct, frozen=True, array_like=True):
    """How an edge of the host fits the fleet. edge : index into HostInfo.edges."""

    edge: int
    residual_ns: int
    fits: bool


class StepReply(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator answers. line : None while the host is not connected to the timeline.

    resend_info : send HostInfo with the next report. neighbours : host -> sidecar URL, when it changed.
    """

    solve: int
    line: Line | None
    root: str
    resend_info: bool
    verdicts: tuple[EdgeVerdict, ...]
    suspect: str
    neighbours: dict[str, str] | None
    generation: int


class LineReply(msgspec.Struct, frozen=True, array_like=True):
    """A sidecar's answer to its neighbour: its timeline, its host clock when it answered, and its status."""

    host: str
    host_ns: int
    line: Line | None
    synchronized: bool


report_encoder = msgspec.msgpack.Encoder()
report_decoder = msgspec.msgpack.Decoder(StepReport)
reply_decoder = msgspec.msgpack.Decoder(StepReply)
line_decoder = msgspec.msgpack.Decoder(LineReply)
