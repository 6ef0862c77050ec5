"""`fabricpulse audit local`: runner, forms of output, exit code."""

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.fixtures.audit.faults import ROCE_FAULTS
from tests.fixtures.descriptors import none_left
from tests.fixtures.hostinfo.host_tree import GpuHost

from fabricpulse.audit.checks.pcie_acs import acs_control
from fabricpulse.audit.command import command
from fabricpulse.audit.commands.output import FOUND, GOOD
from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.host.check import Check, HostCheck
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import Finding, HostReport, Measurement, Outcome, Result, Run, Status, passed
from fabricpulse.audit.report.junit import junit
from fabricpulse.audit.report.show import show_run
from fabricpulse.hostinfo.sources import HostSources


def check(run: object, name: str = "made-up") -> HostCheck:
    text = "It is."
    return HostCheck(Check(name, "node", "error", "Made up", text, text, text), run)  # type: ignore[arg-type]


def empty_reader(root: Path) -> HostReader:
    return HostReader(HostSources(root / "sys"), root, disk=lambda _: None)


def test_a_check_that_breaks_is_unknown_and_costs_no_other(tmp_path: Path) -> None:
    """What it said before it broke is kept."""

    def breaks(_: HostReader) -> Iterator[Outcome]:
        yield passed("first")
        raise ZeroDivisionError

    report = audit_host(
        "h", empty_reader(tmp_path), checks=[check(breaks), check(lambda _: [passed("second")])]
    )
    assert [r.outcome.status for r in report.results] == [Status.PASSED, Status.UNKNOWN, Status.PASSED]


def test_a_check_that_hangs_is_left_behind(tmp_path: Path) -> None:
    """A read that does not come back costs its patience, and the others are made."""
    ever = threading.Event()

    def hangs(_: HostReader) -> Iterator[Outcome]:
        ever.wait()
        yield passed("late")

    checks = [check(hangs), check(lambda _: [passed("second")])]
    report = audit_host("h", empty_reader(tmp_path), checks=checks, check_patience_s=0.05, patience_s=60)
    ever.set()
    assert [r.outcome.status for r in report.results] == [Status.UNKNOWN, Status.PASSED]


def test_a_host_that_tells_nothing_passes_nothing(tmp_path: Path) -> None:
    """On an empty tree nothing is claimed: all is unknown or does not apply."""
    report = audit_host("h", empty_reader(tmp_path), patience_s=60)
    claimed = [r for r in report.results if r.outcome.status in (Status.PASSED, Status.FAILED)]
    assert claimed == []
    assert {value.attribute for value in report.values} == set()


def test_hostile_tree(tmp_path: Path) -> None:
    """FIFOs, folders, giants, bad bytes in place of files: no crash, no wait, nothing claimed of them."""
    import os

    host = GpuHost(tmp_path, nics=2)
    for path in ("proc/meminfo", "proc/net/route", "etc/resolv.conf"):
        (tmp_path / path).unlink()
        os.mkfifo(tmp_path / path)
    (tmp_path / "proc/modules").write_bytes(b"\xff" * 5_000_000)
    (tmp_path / "proc/cmdline").write_bytes(b"\xff\xfe\0quiet")
    host.net("eth0np0", "mtu", "9" * 4000)
    host.function_file(host.pci(0), "current_link_width", "-16")
    report = audit_host("h", host.reader(), patience_s=60)

    by_check = {r.check: r.outcome.status for r in report.results if r.check in ("swap", "default-gateway")}
    assert by_check == {"swap": Status.UNKNOWN, "default-gateway": Status.UNKNOWN}
    assert not [r for r in report.results if "broke" in r.outcome.summary]


@pytest.mark.parametrize("fault", [None, "disk_full", "nic_mtu"])
def test_exit_code(tmp_path: Path, fault: str | None) -> None:
    """0 on a good tree; 10 when an error was found. Kernel interfaces are not asked about a copied tree."""
    host = GpuHost(tmp_path)
    if fault:
        next(f for f in ROCE_FAULTS if f.name == fault).play(host, 1)
    result = CliRunner().invoke(command, ["local", "--root", str(tmp_path), "--output", "json"])
    # The tree does not tell of disks.
    assert result.exit_code == (FOUND if fault == "nic_mtu" else GOOD), result.output
    run = json.loads(result.stdout)
    assert run["hosts"][0]["host"] == "gpu-001"


def test_text_names_the_finding_and_the_cure(tmp_path: Path) -> None:
    """The tree has check, device, what is wrong and what to do; nothing of what passed."""
    host = GpuHost(tmp_path)
    host.net("eth2np0", "mtu", 1500)
    output = CliRunner().invoke(command, ["local", "--root", str(tmp_path)], env={"COLUMNS": "200"}).output
    assert "nic-mtu-same" in output
    assert "gpu-001 eth2np0: MTU 1500, the others have 9000" in output
    assert "→ Set the MTU" in output
    assert "pcie-link" not in output


def test_junit(tmp_path: Path) -> None:
    """A failure is a failure, what does not apply is skipped, and the document parses whatever a host says."""
    host = GpuHost(tmp_path)
    host.net("eth2np0", "operstate", "do\x01wn")
    output = CliRunner().invoke(command, ["local", "--root", str(tmp_path), "--output", "junit"]).stdout
    suite = ET.fromstring(output).find("testsuite")  # noqa: S314 - our own
    assert suite is not None
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert "nic-link-up eth2np0" in failed
    assert len(list(suite)) == int(suite.get("tests", ""))


def test_junit_of_a_run_has_what_no_host_tells_itself(tmp_path: Path) -> None:
    """Paths and odd values, each once; a host's own failure is in its suite alone."""
    own = Result("memlock", "node", "error", Outcome(Status.FAILED, "s", "x"))
    reports = [HostReport("h", 0, 1, (own,), ())]
    findings = fleet_findings(
        reports, {}, more=[Finding("path-loss", "back-end", "error", "h", "e0", "lossy")]
    )
    reports.append(HostReport("i", 0, 1, (), ()))
    measured = (Measurement("loss", "r", "h", "e0", "i", "e0", 0.2, True),)
    run = Run("r", 0, 1, ("h", "i"), tuple(reports), findings, measurements=measured)
    root = ET.fromstring(junit(run))  # noqa: S314 - our own
    cases = [
        (suite.get("name"), case.get("name"), case[0].tag if len(case) else "passed")
        for suite in root
        for case in suite
    ]
    assert cases[0] == ("h", "memlock x", "failure")
    assert set(cases) >= {
        ("fleet", "path-loss h e0", "failure"),
        ("fleet", "path-loss i", "passed"),
        ("fleet", "path-bandwidth", "skipped"),
    }
    assert ("fleet", "path-loss h", "passed") not in cases
    assert all(len(list(suite)) == int(suite.get("tests", "")) for suite in root)


def test_the_tree_has_what_passed_between_hosts() -> None:
    """With --all; and what was not made."""
    hosts = tuple(HostReport(name, 0, 1, (), ()) for name in "hi")
    measured = (Measurement("loss", "r", "h", "e0", "i", "e0", 0, True),)
    console = Console(file=io.StringIO(), width=200)
    show_run(Run("r", 0, 1, ("h", "i"), hosts, (), measurements=measured), console, every=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "path-loss  2 passed" in text
    [left] = [line for line in text.splitlines() if line.startswith("not made:")]
    assert "path-bandwidth" in left
    assert "path-loss" not in left


def test_profile_that_is_not_kept(tmp_path: Path) -> None:
    """`learn` of a good host, then `--profile` on a changed one: the finding is of the profile."""
    root = tmp_path / "host"
    host = GpuHost(root)
    runner = CliRunner()
    (tmp_path / "run.json").write_text(
        runner.invoke(command, ["local", "--root", str(root), "--output", "json"]).stdout
    )
    (tmp_path / "profile.yaml").write_text(
        runner.invoke(command, ["learn", str(tmp_path / "run.json")]).stdout
    )
    arguments = [
        "local",
        "--root",
        str(root),
        "--profile",
        str(tmp_path / "profile.yaml"),
        "--output",
        "json",
    ]
    assert runner.invoke(command, arguments).exit_code == GOOD
    host.write("proc/sys/kernel/osrelease", "6.8.0-41-generic")
    arguments += ["--fail-on", "warning"]
    found = runner.invoke(command, arguments)
    assert found.exit_code == FOUND
    assert [f["evidence"] for f in json.loads(found.stdout)["findings"]] == [
        {"attribute": "kernel", "role": "nvidia GPU host"}
    ]


def test_diff(tmp_path: Path) -> None:
    """What is new and what is gone, by exit code too, and the same as JSON."""
    host = GpuHost(tmp_path / "host")
    runner = CliRunner()
    for name, mtu in (("before", 9000), ("after", 1500)):
        host.net("eth2np0", "mtu", mtu)
        result = runner.invoke(command, ["local", "--root", str(tmp_path / "host"), "--output", "json"])
        (tmp_path / name).write_text(result.stdout)
    forward = runner.invoke(command, ["diff", str(tmp_path / "before"), str(tmp_path / "after")])
    back = runner.invoke(command, ["diff", str(tmp_path / "after"), str(tmp_path / "before")])
    assert (forward.exit_code, back.exit_code) == (FOUND, GOOD)
    assert forward.output.startswith("+ error nic-mtu-same gpu-001 eth2np0: ")
    assert back.output.startswith("- error nic-mtu-same gpu-001 eth2np0: ")
    files = [str(tmp_path / name) for name in ("before", "after")]
    document = runner.invoke(command, ["diff", "--output", "json", *files])
    found = json.loads(document.stdout)
    assert document.exit_code == FOUND
    assert [(one["check"], one["subject"]) for one in found["new"]] == [("nic-mtu-same", "eth2np0")]
    assert found["gone"] == []


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """One sentence, no traceback."""
    (tmp_path / "x").write_text('{"schema": 7}')
    result = CliRunner().invoke(command, ["show", str(tmp_path / "x")])
    assert "is no Run of an audit" in str(result.exception)


def test_acs_control() -> None:
    """A space that is not whole is unknown; a list of capabilities in a circle ends; no capability is 0."""
    assert acs_control(bytes(64)) is None
    assert acs_control(bytes(4096)) == 0
    circle = bytearray(4096)
    circle[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert acs_control(bytes(circle)) == 0
    last = bytearray(4096)
    last[0x100:0x104] = (0x0001 | 0xFFC << 20).to_bytes(4, "little")
    last[0xFFC:0x1000] = (0x000D).to_bytes(4, "little")
    assert acs_control(bytes(last)) == 0


def test_same_on_all() -> None:
    """Without a majority all fail, for nobody knows who is right; a value that is not known is unknown."""
    halves = list(same_on_all({"a": 1, "b": 2}, "MTU", ""))
    assert [o.status for o in halves] == [Status.FAILED, Status.FAILED]
    mixed = {o.subject: o.status for o in same_on_all({"a": 1, "b": 1, "c": None}, "MTU", "")}
    assert mixed == {"a": Status.PASSED, "b": Status.PASSED, "c": Status.UNKNOWN}


def test_a_bond_whose_members_tell_nothing_is_unknown(tmp_path: Path) -> None:
    """A member without a state is not down; the bonding driver's own monitor counts where the link does not tell."""
    host = GpuHost(tmp_path, nics=2)
    (host.sys.net("eno2") / "operstate").unlink()

    def status() -> Status:
        report = audit_host("h", host.reader(), patience_s=60)
        return next(r.outcome.status for r in report.results if r.check == "bond-members")

    assert status() is Status.UNKNOWN
    monitor = host.sys.net("bond0") / "slave_eno2/bonding_slave/mii_status"
    host.sys.write(monitor, "up")
    assert status() is Status.PASSED
    host.sys.write(monitor, "down")
    assert status() is Status.FAILED


def test_a_reader_without_descriptors_knows_nothing(tmp_path: Path) -> None:
    """What it cannot open is not missing: of a host that is whole nothing fails, and no NIC, GPU or service is none.
    What needs no file may pass.
    """
    host = GpuHost(tmp_path)
    reader = host.reader()
    before = {(r.check, r.outcome.status) for r in audit_host("h", host.reader()).results}
    with none_left():
        report = audit_host("h", reader)
    after = {(r.check, r.outcome.status) for r in report.results}
    assert {status for _, status in after} >= {Status.UNKNOWN}
    assert [check for check, status in after if status is Status.FAILED] == []
    passed = {check for check, status in after if status is Status.PASSED}
    assert passed <= {check for check, status in before if status is Status.PASSED}
    # What was judged before is not out of place now.
    judged = {check for check, status in before if status is not Status.NOT_APPLICABLE}
    assert judged.isdisjoint(check for check, status in after if status is Status.NOT_APPLICABLE)
