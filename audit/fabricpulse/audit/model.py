"""What an audit finds: outcomes of checks, values that the fleet compares, the report of a host, a run.

All of it is plain data that goes through JSON unchanged; `decode_*` refuses what no audit of ours has written.
"""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

SCHEMA = 1

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
Category = Literal["node", "front-end", "back-end", "fleet"]
CATEGORIES: tuple[Category, ...] = ("node", "front-end", "back-end", "fleet")

# Bounds of what another host may send: names, lines of text, and how many of each.
Name = Annotated[str, Meta(max_length=128)]
Text = Annotated[str, Meta(max_length=2048)]
# It is shown as it is.
CheckId = Annotated[str, Meta(max_length=128, pattern="^[a-z0-9][a-z0-9-]*$")]
# Far beyond what any host takes, and what any clock says: what is made of them is finite, too.
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
MOST_AWAITED = 1024
# That one test of a host names; no ring has more hosts.
MOST_PEERS = 128


class Status(StrEnum):
    """Of one check on one subject.

    PASSED and FAILED were seen. UNKNOWN: what the check needs could not be read. NOT_APPLICABLE: the host does not have
    what the check is about.
    """

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


class Outcome(Struct, frozen=True):
    """What a check says of one subject.

    subject : a device of the host, "" for the host itself. summary : one line for a person. evidence : what was read,
    by the name of the file or the interface.
    """

    status: Status
    summary: Text
    subject: Name = ""
    evidence: Annotated[dict[Name, Text], Meta(max_length=64)] = {}


class Result(Struct, frozen=True):
    """An outcome with the check that it is of."""

    check: CheckId
    category: Category
    severity: Severity
    outcome: Outcome


class Value(Struct, frozen=True, order=True):
    """One value of a host that the fleet compares.

    attribute : of `attributes.ATTRIBUTES`. role : what is compared with what: the same NIC of like hosts, hosts with as
    many GPUs. subject : "" for the host.
    """

    attribute: Name
    role: Name
    subject: Name
    value: Text


class FrontEnd(Struct, frozen=True):
    """Where an agent was reached. device : that has the address; mtu : of it, bytes."""

    device: Name
    address: Annotated[str, Meta(max_length=45)]
    mtu: Annotated[int, Meta(ge=0, le=1 << 20)]


class Finding(Struct, frozen=True):
    """Something that is wrong, or odd. host : "" for the whole fleet. suspects : hosts of which one may be at fault, or
    what lies between them, where that is not decided; then `host` is empty."""

    check: Name
    category: Category
    severity: Severity
    host: Name
    subject: Name
    summary: Text
    evidence: dict[Name, Text] = {}
    suspects: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class OpenFinding(Struct, frozen=True):
    """A finding of an earlier audit that none since has looked at again. run, at : which, and its end, Unix seconds;
    "" for an audit of the host alone. hosts, rate_bps, profile, datagrams : of that run, as in FleetFindings."""

    run: Name
    at: Seconds
    finding: Finding
    hosts: int = 0
    rate_bps: float = 0.0
    profile: Text = ""
    datagrams: int = 0


class HostReport(Struct, frozen=True):
    """All that one host has said. collected_at : host time, Unix seconds. duration_s : that it took. boot : the
    kernel's own name of the time since it started (boot_id), "" where it cannot be read. front_end : where `audit run`
    has reached its agent. machine : a name of the machine, of its /etc/machine-id. rails : devices that the fleet
    lists. open : of the reports kept before it, what this one has not looked at again. hostname : the kernel's own, as
    `host` may be another name in the fleet. awaits : hosts that it must be tested with again, by what its agent has
    kept of earlier runs."""

    host: Name
    collected_at: Seconds
    duration_s: Seconds
    results: Annotated[tuple[Result, ...], Meta(max_length=20_000)]
    values: Annotated[tuple[Value, ...], Meta(max_length=20_000)]
    version: Name = ""
    schema: Literal[1] = 1
    boot: Name = ""
    front_end: FrontEnd | None = None
    machine: Name = ""
    rails: Annotated[tuple[Name, ...], Meta(max_length=1024)] = ()
    open: Annotated[tuple[OpenFinding, ...], Meta(max_length=1000)] = ()
    hostname: Name = ""
    awaits: Annotated[tuple[Name, ...], Meta(max_length=MOST_AWAITED)] = ()


MeasurementKind = Literal[
    "connectivity", "mtu", "loss", "owd", "bandwidth", "duplex", "ecmp_loss", "ecmp_delay", "rdma"
]


class Measurement(Struct, frozen=True, array_like=True, order=True):
    """What one test from NIC to NIC has measured.

    kind, value : connectivity and mtu, round trip in seconds, 0 without an answer; loss, share of datagrams; owd,
    smallest one-way delay in seconds; bandwidth, bits per second; duplex, bandwidth of both directions at once, as a
    share of what each reaches alone; ecmp_loss, ecmp_delay, what the source ports lose that lose, and by how much the
    latest is later than others, in seconds; rdma, bits per second by RDMA WRITE, 0 where none came through.
    detail : of ECMP, those source ports, and the port that they send to; of others, why the value decides nothing.
    network : of both NICs. ok : None where the value decides nothing. attempts : how often the test was made; its best
    value counts, of loss that of all datagrams.
    """

    kind: MeasurementKind
    network: Name
    source_host: Name
    source_device: Name
    target_host: Name
    target_device: Name
    value: float
    ok: bool | None
    attempts: int = 1
    bound: float = 0.0
    detail: Text = ""


class InBandDelay(Struct, frozen=True, array_like=True, order=True):
    """One-way delay inside a ring beside that of probes between the same NICs, seconds.

    least, most : between which the smallest of the ring lies. probe : smallest of what `of` names; bound : of the error
    of both. late : None where that decides nothing.
    """

    source_host: Name
    source_device: Name
    target_host: Name
    target_device: Name
    least: float
    most: float
    probe: float
    bound: float
    of: Text
    late: bool | None


class Ring(Struct, frozen=True):
    """One ring of the NCCL plugin over hosts, or one all-reduce of NCCL itself.

    order : "given", or "by leaf". lanes : most of a connection. bps : bus bandwidth of the slowest rank, bits per
    second, None where it was not finished; error says why. expected : of its slowest pair by the tests of pairs, None
    where they do not say. corrupt_bytes : of the verified result. delays : beside those of probes. torch : by NCCL
    itself, on one GPU of each host; it has no number of lanes, 0. failed : hosts that gave an error.
    """

    order: Name
    lanes: int
    hosts: tuple[Name, ...]
    bps: float | None
    expected: float | None = None
    corrupt_bytes: int = 0
    error: Text = ""
    delays: tuple[InBandDelay, ...] = ()
    torch: bool = False
    failed: tuple[Name, ...] = ()


class Run(Struct, frozen=True):
    """One audit of a fleet.

    id : of its beginning, in UTC. asked : the hosts that were to be audited. hosts : reports of those that answered.
    findings : worst first. cancelled : not all hosts were waited for. measurements : of the tests between NICs.
    rings : of the NCCL plugin. not_asked : hosts whose report is from the run that this one goes on with. located :
    NICs of which LLDP has shown where their cable goes. rate_bps : most that a NIC was asked to send, 0 without
    transfers. oldest_at : when the first of the runs that this one goes on with began, 0 if it goes on with none.
    datagrams : fewest that a transfer has measured loss by, 0 without transfers.
    """

    id: Name
    started_at: float
    duration_s: float
    asked: tuple[Name, ...]
    hosts: tuple[HostReport, ...]
    findings: tuple[Finding, ...]
    cancelled: bool = False
    profile: Text = ""
    notes: tuple[Text, ...] = field(default=())
    measurements: tuple[Measurement, ...] = ()
    schema: Literal[1] = 1
    rings: tuple[Ring, ...] = ()
    not_asked: tuple[Name, ...] = ()
    located: tuple[tuple[Name, Name], ...] = ()
    rate_bps: float = 0.0
    oldest_at: float = 0.0
    datagrams: int = 0


# What Tested says of a value that a host has reported, which several checks judge.
VALUE = "value"


class Tested(Struct, frozen=True):
    """One kind of look that a run has taken at a host. check : that would have found it, or VALUE. subject : its NIC,
    "" for the host; of a value its attribute, and the device that has it. peers : hosts with which something was
    decided. side : of a test of pairs, whether it is of what the NIC sends or of what it is sent. undecided : ways of
    that side of which nothing was decided.
    """

    check: Name
    subject: Name = ""
    peers: Annotated[tuple[Name, ...], Meta(max_length=MOST_PEERS)] = ()
    side: Literal["", "sends", "receives"] = ""
    undecided: int = 0


class FleetFindings(Struct, frozen=True):
    """What a run of the fleet has found about one host, beside the host's own checks, and by which tests.

    run, at : the run's id, and when it ended, Unix seconds. tested : what was looked at. hosts : how many were
    compared. rate_bps, profile, datagrams : as in Run. host, boot, machine, hostname : whose it is, as in HostReport.
    earlier : of the runs before, what this one has not tested again. checks : that the run knows. members : hosts in
    its membership, 0 if it was given none. removed : of those that the host awaits, which that does not list.
    devices : of the host, that it lists, or that the host has reported; () if nothing is known.
    """

    run: Name
    at: float
    findings: Annotated[tuple[Finding, ...], Meta(max_length=1000)]
    schema: Literal[1] = 1
    tested: Annotated[tuple[Tested, ...], Meta(max_length=4096)] = ()
    hosts: int = 0
    rate_bps: float = 0.0
    profile: Text = ""
    host: Name = ""
    boot: Name = ""
    machine: Name = ""
    earlier: Annotated[tuple[OpenFinding, ...], Meta(max_length=1000)] = ()
    datagrams: int = 0
    checks: Annotated[tuple[Name, ...], Meta(max_length=1024)] = ()
    members: int = 0
    removed: Annotated[tuple[Name, ...], Meta(max_length=MOST_AWAITED)] = ()
    devices: Annotated[tuple[Name, ...], Meta(max_length=4096)] = ()
    hostname: Name = ""


def failures(report: HostReport) -> list[Finding]:
    """What the host's own checks have found."""
    return [
        Finding(
            result.check,
            result.category,
            result.severity,
            report.host,
            result.outcome.subject,
            result.outcome.summary,
            result.outcome.evidence,
        )
        for result in report.results
        if result.outcome.status is Status.FAILED
    ]


def passed(summary: str, subject: str = "", **evidence: object) -> Outcome:
    """The check has seen that it is right."""
    return _outcome(Status.PASSED, summary, subject, evidence)


def failed(summary: str, subject: str = "", **evidence: object) -> Outcome:
    """The check has seen that it is wrong."""
    return _outcome(Status.FAILED, summary, subject, evidence)


def unknown(summary: str, subject: str = "", **evidence: object) -> Outcome:
    """What the check needs could not be read; nothing is concluded."""
    return _outcome(Status.UNKNOWN, summary, subject, evidence)


def not_applicable(summary: str, subject: str = "") -> Outcome:
    """The host has nothing that the check is about."""
    return _outcome(Status.NOT_APPLICABLE, summary, subject, {})


def _outcome(status: Status, summary: str, subject: str, evidence: dict[str, object]) -> Outcome:
    texts = {key: clip(str(value)) for key, value in list(evidence.items())[:64] if value is not None}
    return Outcome(status, clip(summary), subject[:128], texts)


def clip(text: str, most: int = 400) -> str:
    """`text` as one printable line of at most `most` characters."""
    line = "".join(c if c.isprintable() else " " for c in text).strip()
    return line if len(line) <= most else f"{line[: most - 1]}…"
