"""What the audit of a fleet makes of hosts that have lost a kind of device, of answers beyond reason, and of runs that
did not look again."""

import asyncio
import errno
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.fixtures.hostinfo.host_tree import GpuHost

from fabricpulse.audit.command import command
from fabricpulse.audit.compare.clocks import ClockOffset
from fabricpulse.audit.compare.diff import diff_runs
from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.compare.odd_one_out import against, compare
from fabricpulse.audit.fleet import fleet_audit
from fabricpulse.audit.fleet.fleet_audit import _Run
from fabricpulse.audit.fleet.run import Target, collect
from fabricpulse.audit.host.attributes import values_of
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import (
    Finding,
    FleetFindings,
    HostReport,
    InBandDelay,
    Measurement,
    Outcome,
    Result,
    Ring,
    Run,
    Status,
    Value,
    failures,
)
from fabricpulse.audit.node.wire import EchoResult, Received, RingAnswer, TransferResult
from fabricpulse.audit.pair_tests.path_tests import plan_rails
from fabricpulse.audit.report.gate import gate
from fabricpulse.audit.report.labels import node_labels
from fabricpulse.audit.report.show import show
from fabricpulse.audit.storage import encode
from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.output import require_writable
from fabricpulse.core.web.client_config import HttpClientConfig

Change = Callable[[GpuHost], object]


def no_gpu(host: GpuHost) -> None:
    for n in range(host.nics):
        (host.sys.root / "bus/pci/devices" / host.gpu_address(n)).unlink()


def no_rdma(host: GpuHost) -> None:
    for n in range(host.nics):
        (host.sys.root / f"class/infiniband/mlx5_{n}").unlink()


def memory(gib: int) -> Change:
    return lambda host: host.write("proc/meminfo", f"MemTotal: {gib << 20} kB\n")


def values(place: Path, *changes: Change) -> tuple[Value, ...]:
    host = GpuHost(place, nics=2)
    host.rails = {}
    for change in changes:
        change(host)
    return values_of(host.reader())


def odd(fleet: dict[str, tuple[Value, ...]]) -> set[tuple[str, str]]:
    found = compare(fleet)
    assert found.divided == ()
    return {(one.host, one.value.attribute) for one in found.odd}


@pytest.mark.parametrize(
    ("change", "attribute"),
    [
        (no_gpu, "gpus"),
        (no_rdma, "rdma_devices"),
        (lambda h: (h.root / "usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3").unlink(), "nccl"),
        (lambda h: (h.root / "usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0").unlink(), "rdma_core"),
    ],
)
def test_a_host_that_has_none_is_odd(change: Change, attribute: str, tmp_path: Path) -> None:
    """All GPUs of a host, all its RDMA devices, a library: none is another value than some."""
    good = values(tmp_path / "good")
    fleet = {f"h{n}": good for n in range(4)} | {"bad": values(tmp_path / "bad", change)}
    assert odd(fleet) == {("bad", attribute)}


def test_hosts_without_gpus_by_design(tmp_path: Path) -> None:
    """Of other memory: not compared with those that have some. Where most have none, few with some are no fault."""
    gpu, none = values(tmp_path / "gpu"), values(tmp_path / "none", no_gpu)
    other = values(tmp_path / "other", no_gpu, memory(512))
    assert odd({f"g{n}": gpu for n in range(5)} | {f"c{n}": other for n in range(2)}) == set()
    assert odd({f"g{n}": gpu for n in range(2)} | {f"c{n}": none for n in range(5)}) == set()


def reported_memory(*gib: int) -> dict[str, tuple[Value, ...]]:
    return {f"h{n}": (Value("memory_gib", "GPU host", "", str(one)),) for n, one in enumerate(gib)}


def test_memory_beside_a_step() -> None:
    """One step is what the kernel takes; a module less is found, and a step of a small host is no chance."""
    assert odd(reported_memory(1008, 1004, 1008, 1004, 1008)) == set()
    assert odd(reported_memory(1008, 1008, 1004, 976)) == {("h3", "memory_gib")}
    assert odd(reported_memory(16, 16, 16, 12)) == {("h3", "memory_gib")}
    pinned = {"GPU host": {"memory_gib": "1008"}}
    assert [host for host, *_ in against(reported_memory(1004, 1008, 992), pinned)] == ["h2"]


def test_virtual_functions_are_not_compared(tmp_path: Path) -> None:
    """They are there or lent to a container."""

    def lent(host: GpuHost) -> None:
        host.sys.link(Path(os.path.realpath(host.sys.ib("mlx5_1") / "device")) / "physfn", host.sys.root)

    reported = {value.attribute: value.value for value in values(tmp_path, lent)}
    assert reported["rdma_devices"] == "1 x MT4129"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (EchoResult, '{"sent": 3, "answered": 3, "rtt_s": 1e308}'),
        (EchoResult, '{"sent": 3, "answered": 3, "rtt_s": -1}'),
        (EchoResult, '{"sent": 3, "answered": -3}'),
        (TransferResult, '{"bps": 1e308}'),
        (TransferResult, '{"bps": -5}'),
        (TransferResult, '{"path_bps": 1e300}'),
        (TransferResult, '{"sent_by_port": {"49152": -1}}'),
        (Received, f'{{"datagrams": 1, "owd_ns": {10**60}}}'),
        (Received, f'{{"datagrams": {10**60}}}'),
        (RingAnswer, '{"bps": 1e308}'),
        (HostReport, '{"host": "h", "collected_at": -1, "duration_s": 1, "results": [], "values": []}'),
        (HostReport, '{"host": "h", "collected_at": 1, "duration_s": 1e300, "results": [], "values": []}'),
    ],
)
def test_answers_beyond_reason_are_refused(kind: Any, text: str) -> None:
    """A number that overflows when it is reported in another unit would leave a page that shows nothing."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=kind)


def test_names_of_checks_do_not_reach_the_terminal_as_they_are() -> None:
    """An agent cannot name one so that a terminal obeys it; nor does a file of a run."""
    outcome = Outcome(Status.FAILED, "s")
    report = HostReport("h", 1, 1, (Result("a\x1b]0;x\x07", "node", "error", outcome),), ())
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(report), type=HostReport)
    console = Console(record=True, file=io.StringIO())
    show("Audit \x1b[2J", [report], failures(report), console)
    assert "\x1b" not in console.export_text()


def test_nics_of_one_host_are_not_paired() -> None:
    """The kernel drops what comes from its own address; a network may have several NICs of a host."""
    nics = [
        [{"device": f"e{d}", "address": f"10.0.{h}.{d}", "network": "all"} for d in range(4)]
        for h in range(3)
    ]
    hosts = [{"name": f"h{n}", "nics": own} for n, own in enumerate(nics)]
    fleet = parse_config(msgspec.json.encode({"hosts": hosts}).decode(), Membership, "x")
    for most in (None, 100):
        rail = plan_rails(fleet, {"h0", "h1", "h2"}, {}, most)["all"]
        pairs = [(rail.nics[a][0][0], rail.nics[b][0][0]) for pairs in rail.plan.rounds for a, b in pairs]
        assert all(a != b for a, b in pairs)
    assert (rail.plan.leaf_pairs, rail.plan.covered) == (48, 48)


def run_of(*findings: Finding, **fields: Any) -> Run:
    return msgspec.structs.replace(Run("x", 1000.0, 1, ("h", "i"), (), findings), **fields)


def report_of(*outcomes: tuple[str, Outcome], reported: tuple[Value, ...] = ()) -> dict[str, Any]:
    results = tuple(Result(check, "node", "error", outcome) for check, outcome in outcomes)
    return {"hosts": (HostReport("h", 1, 1, results, reported), HostReport("i", 1, 1, (), ()))}


def measured(kind: Any, ok: bool | None = True) -> dict[str, Any]:
    return {**report_of(), "measurements": (Measurement(kind, "n", "h", "e0", "i", "e0", 1.0, ok),)}


def own(check: str, **evidence: str) -> Finding:
    return Finding(check, "node", "error", "h", "e0", "s", evidence)


def delayed(late: bool | None) -> Ring:
    one = InBandDelay("h", "e0", "i", "e0", 1e-6, 2e-6, 1e-6, 0.0, "datagrams", late)
    return Ring("given", 1, ("h", "i"), 1.0, delays=(one,))


ODD = own("odd-one-out", attribute="mtu")
SUSPECTED = Finding("path-mtu", "back-end", "error", "", "h e0 > i e0", "s", suspects=("h", "i"))


@pytest.mark.parametrize(
    ("finding", "later", "gone"),
    [
        (own("memlock"), report_of(("memlock", Outcome(Status.PASSED, "s", "e0"))), True),
        (own("memlock"), report_of(("memlock", Outcome(Status.NOT_APPLICABLE, "s"))), True),
        (own("memlock"), report_of(("memlock", Outcome(Status.UNKNOWN, "s"))), False),
        (own("memlock"), report_of(), False),
        (own("memlock"), {}, False),
        (own("path-loss"), measured("loss"), True),
        (own("path-loss"), measured("loss", None), False),
        (own("path-loss"), measured("bandwidth"), False),
        (own("path-loss"), report_of(), False),
        (own("path-untested", reason="in use: a job"), measured("connectivity"), True),
        (own("path-untested", reason="loss that it sends: a host was busy"), measured("loss"), True),
        (own("path-untested", reason="loss, MTU: a host was busy"), measured("loss"), False),
        (own("path-untested", reason="loss: a host was busy"), measured("connectivity"), False),
        (SUSPECTED, measured("mtu"), True),
        (SUSPECTED, report_of(), False),
        (own("nccl-ring"), report_of(), False),
        (own("nccl-ring"), {**report_of(), "rings": (Ring("given", 1, ("h",), 1.0),)}, True),
        (own("nccl-delay"), {**report_of(), "rings": (Ring("given", 1, ("h",), 1.0),)}, False),
        (own("nccl-delay"), {**report_of(), "rings": (delayed(None),)}, False),
        (own("nccl-delay"), {**report_of(), "rings": (delayed(False),)}, True),
        (own("clock-offset"), report_of(), True),
        (own("clock-offset"), {**report_of(), "not_asked": ("h",)}, False),
        (own("wiring"), report_of(), False),
        (own("wiring"), {**report_of(), "located": (("h", "e1"),)}, False),
        (own("wiring"), {**report_of(), "located": (("h", "e0"),)}, True),
        (ODD, report_of(reported=(Value("mtu", "r", "e0", "9000"),)), True),
        (ODD, report_of(reported=(Value("speed", "r", "e0", "1"),)), False),
        (own("profile", attribute="mtu"), report_of(reported=(Value("mtu", "r", "e0", "9000"),)), False),
        (
            own("profile", attribute="mtu"),
            {**report_of(reported=(Value("mtu", "r", "e0", "9000"),)), "profile": "p"},
            True,
        ),
    ],
)
def test_gone_is_what_was_looked_for_again(finding: Finding, later: dict[str, Any], gone: bool) -> None:
    """A run that has not looked, or could not read it, mends nothing."""
    found = diff_runs(run_of(finding), run_of(**later))
    assert (found.gone, found.unseen) == (((finding,), ()) if gone else ((), (finding,)))


def test_two_pinned_values_of_one_host_are_two_findings() -> None:
    """Neither hides the other in a comparison of runs."""
    reported = (Value("kernel", "host", "", "5"), Value("nccl", "host", "", "2"))
    report = HostReport("h", 1, 1, (), reported)
    profile: Any = SimpleNamespace(roles={"host": {"kernel": "6", "nccl": "3"}})
    found = fleet_findings([report], {}, profile)
    assert len(diff_runs(run_of(), run_of(*found, hosts=(report,))).new) == 2


def test_a_run_that_goes_on_tells_of_its_own_hosts(tmp_path: Path) -> None:
    """What the interrupted one measured of others accuses none that nobody asked about."""
    ways = [("h", "i"), ("h", "j")]
    before = tuple(Measurement("loss", "n", a, "e0", b, "e0", 0.5, False) for a, b in ways)
    (tmp_path / "run").write_bytes(encode(run_of(started_at=time.time(), measurements=before)))
    options: Any = SimpleNamespace(resume=tmp_path / "run", profile=None, tests_paths=False, transfers=None)
    found = _Run(options, None, ("h", "i"), lambda _: None).judged(None)
    assert found.measurements == before[:1]


def test_a_run_that_goes_on_says_whose_clocks_it_has_not_compared(tmp_path: Path) -> None:
    """What is known of a clock is when a host answers; the interrupted run has kept no such times."""
    before = run_of(started_at=time.time(), hosts=(HostReport("h", 1, 1, (), ()),))
    (tmp_path / "run").write_bytes(encode(before))
    options: Any = SimpleNamespace(resume=tmp_path / "run", profile=None, tests_paths=False, transfers=None)
    note = "clocks: not compared of hosts that were not asked again (1)"
    goes_on = _Run(options, None, ("h", "i"), lambda _: None).judged(None)
    assert note in goes_on.notes
    assert goes_on.not_asked == ("h",)
    assert note not in _Run(options, None, ("i",), lambda _: None).judged(None).notes


def test_the_clock_of_the_host_that_asks_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two hosts, asked from the one that is off, the other is not named; a container is known by its kernel."""
    reports = [HostReport("bad", 1, 1, (), (), boot="b"), HostReport("good", 1, 1, (), (), boot="c")]

    async def collect_from_bad(*arguments: Any) -> tuple[list[HostReport], dict[str, str], bool]:
        arguments[-1].update(bad=ClockOffset(-1, 1), good=ClockOffset(-61, -59))
        return reports, {}, False

    monkeypatch.setattr(fleet_audit, "_collect", collect_from_bad)
    options: Any = SimpleNamespace(
        resume=None, profile=None, tests_paths=False, transfers=None, host_timeout_s=1
    )
    named = {}
    for boot in ("b", "elsewhere", ""):
        monkeypatch.setattr(fleet_audit, "own_boot", lambda boot=boot: boot)
        run = _Run(options, None, ("bad", "good"), lambda _: None)
        run.collect([], HttpClientConfig())
        named[boot] = [f.host for f in run.judged(None).findings if f.check == "clock-offset"]
    assert named == {"b": [], "elsewhere": ["good"], "": ["good"]}


def test_a_host_that_proves_nothing_is_not_labelled_as_passed() -> None:
    """A profile pins what it does not tell."""
    run = run_of(Finding("profile-unproven", "fleet", "warning", "h", "", "s"), **report_of())
    assert [(one.host, one.state) for one in node_labels(run)] == [("h", "unknown"), ("i", "passed")]


@pytest.mark.parametrize(
    ("host", "boot", "is_open", "doubts"),
    [
        ("gpu-1", "b", True, 0),
        ("gpu-1.example.org", "c", None, 0),
        ("gpu-2", "c", None, 0),
        # Agents may have a name of their own.
        ("gpu-2", "b", True, 0),
        ("gpu-2", "", True, 0),
    ],
)
def test_gate_of_a_copied_disk(host: str, boot: str, is_open: bool | None, doubts: int) -> None:
    """What the image's own host has passed says nothing, nor what it passed before it was started anew."""
    fleet = FleetFindings("x", 1000.0, ())
    answer = gate(
        HostReport("gpu-1", 1000.0, 1, (), (), boot="b"), 1001.0, 60, fleet=fleet, host=host, boot=boot
    )
    assert (answer.open, len(answer.unknown)) == (is_open, doubts)


def test_gate_after_a_restart() -> None:
    """What it failed before still closes; an audit since then opens it."""
    fleet = FleetFindings("x", 1000.0, (), host="gpu-1", boot="b")
    failed = Result("swap", "node", "error", Outcome(Status.FAILED, "s"))
    for results, boot, is_open in (((), "c", None), ((failed,), "c", False), ((), "b", True)):
        report = HostReport("gpu-1", 1000.0, 1, results, (), boot="b")
        answer = gate(report, 1001.0, 60, fleet=fleet, host="gpu-1", boot=boot)
        assert answer.open is is_open
        assert any("started anew" in line for line in (*answer.reasons, *answer.unknown)) is (boot == "c")
    since = HostReport("gpu-1", 1000.5, 1, (), (), boot="c")
    answer = gate(since, 1001.0, 60, fleet=fleet, host="gpu-1", boot="c")
    assert answer.open is True
    assert answer.unknown == ("the last run of the fleet, x, was before this host started anew",)
    assert gate(since, 1001.0, 60, fleet=fleet, host="gpu-1", boot="c", strict=True).open is None


def test_a_copied_tree_is_not_kept_as_this_host(tmp_path: Path) -> None:
    """Or else the gate would be open by it."""
    (tmp_path / "sys").mkdir()
    arguments = ["local", "--root", str(tmp_path), "--keep", "--state", str(tmp_path / "state")]
    assert CliRunner().invoke(command, arguments).exit_code == 2
    assert not (tmp_path / "state").exists()


def test_a_report_says_in_which_start(tmp_path: Path) -> None:
    """As the kernel tells."""
    host = GpuHost(tmp_path, nics=1)
    host.write("proc/sys/kernel/random/boot_id", "a7b0")
    assert audit_host("h", host.reader(), checks=[]).boot == "a7b0"


def test_a_file_in_a_folder_that_may_not_be_searched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a traceback; as the kernel answers who is not root."""
    path, stat = tmp_path / "closed" / "x", os.stat

    def refusing(file: Any, **options: Any) -> os.stat_result:
        if Path(file) == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(file, **options)

    monkeypatch.setattr(os, "stat", refusing)
    with pytest.raises(UserError, match="cannot write"):
        require_writable(path)


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--html", "cannot write {path}"),
        ("--save", "cannot write {path}"),
        ("--wiring-file", "{path}"),
    ],
)
def test_files_that_are_no_use_are_refused_before_hosts_are_asked(
    flag: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not after minutes of tests, whose results would be lost."""
    monkeypatch.setattr(fleet_audit, "_collect", lambda *_: pytest.fail("a host was asked"))
    membership = tmp_path / "fleet.yaml"
    membership.write_text("hosts: [{name: h}]")
    path = tmp_path / "none" / "x"
    result = CliRunner().invoke(command, ["run", "--membership", str(membership), flag, str(path)])
    assert isinstance(result.exception, UserError)
    assert text.format(path=path) in str(result.exception)


def test_a_name_that_cannot_be_looked_up_is_one_silent_host() -> None:
    """And not the end of the run."""
    names = ("a" * 70, "a..b")
    targets = [Target(name, f"http://{name}:9617", {}) for name in names]
    reports, silent = asyncio.run(collect(targets, HttpClientConfig()))
    assert (reports, set(silent)) == ([], set(names))
