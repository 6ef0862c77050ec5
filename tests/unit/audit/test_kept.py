"""What the gate decides by after a run that looked at less, that could not be kept, or was kept on another machine."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fabricpulse.audit import storage
from fabricpulse.audit.boot import machine_of
from fabricpulse.audit.command import command
from fabricpulse.audit.commands import local as local_module
from fabricpulse.audit.compare.findings import of_host
from fabricpulse.audit.expose import expose
from fabricpulse.audit.fleet import fleet_audit
from fabricpulse.audit.model import (
    Finding,
    FleetFindings,
    HostReport,
    Outcome,
    Result,
    Run,
    Status,
    Value,
)
from fabricpulse.audit.report.gate import gate
from fabricpulse.audit.still_open import report_with_open_findings, with_open_findings
from fabricpulse.core import files
from fabricpulse.core.errors import UserError
from fabricpulse.core.metrics.exposition import Exposition

NOW = 1_795_374_000.0
MTU = Value("mtu", "nic", "eth1", "9000")
EXTRA = Value("mtu", "nic", "eth2", "9000")
GOOD = HostReport("h", NOW, 1, (), ())


def lossy() -> Finding:
    return Finding("path-loss", "back-end", "error", "h", "eth1", "lossy")


def run_of(*findings: Finding, peers: str = "") -> Run:
    hosts = tuple(HostReport(name, NOW, 1, (), ()) for name in ("h", *peers))
    asked = tuple(host.host for host in hosts)
    return Run("r", NOW, 0, asked, hosts, findings)


def report(*results: tuple[str, str, Status], **more: Any) -> HostReport:
    made = tuple(
        Result(check, "node", "error", Outcome(status, "s", subject)) for check, subject, status in results
    )
    return HostReport("h", NOW, 1, made, (), **more)


LINK = ("nic-link-up", "eth1", Status.FAILED)


@pytest.mark.parametrize(
    ("later", "is_open"),
    [
        # No rails: eth1 is not looked at.
        (report(("nic-link-up", "", Status.NOT_APPLICABLE)), False),
        (report(("nic-link-up", "eth0", Status.PASSED)), False),
        (report(), False),
        (report(("nic-link-up", "eth1", Status.UNKNOWN), rails=("eth1",)), False),
        (report(("nic-link-up", "eth1", Status.PASSED), rails=("eth1",)), True),
        # The fleet lists it no more.
        (report(("nic-link-up", "eth0", Status.PASSED), rails=("eth0",)), True),
    ],
)
def test_a_report_without_the_rails_leaves_their_errors_open(later: HostReport, is_open: bool) -> None:
    """Also over a further report that does not know them."""
    before = report(LINK, ("memlock", "", Status.PASSED), rails=("eth1",))
    kept = report_with_open_findings(before, later)
    assert gate(kept, NOW + 1, 60).open is is_open
    assert gate(report_with_open_findings(kept, later), NOW + 1, 60).open is is_open
    seen = report_with_open_findings(kept, report(("nic-link-up", "eth1", Status.PASSED), rails=("eth1",)))
    assert gate(seen, NOW + 1, 60).open is True


def closed_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_all", no_room)


def gate_of(folder: Path) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["gate", "--state", str(folder)])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["last", "fleet"])
def test_a_full_disk_leaves_no_older_gate_open(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found could not be kept: not known, until it can be."""
    now = time.time()
    good, found = report(("a", "", Status.PASSED)), FleetFindings("r", now, ())
    good = msgspec.structs.replace(good, collected_at=now)

    def keep() -> None:
        if name == "last":
            storage.keep_report(tmp_path, msgspec.structs.replace(good, duration_s=2), 3)
        else:
            storage.keep_fleet(tmp_path, found)

    storage.keep_report(tmp_path, good, 3)
    storage.keep_fleet(tmp_path, found)
    assert gate_of(tmp_path) == (0, "open\n")
    with monkeypatch.context() as full:
        closed_disk(full)
        with pytest.raises(UserError, match="make room"):
            keep()
        code, text = gate_of(tmp_path)
        assert (code, "could not be kept" in text) == (11, True)
    keep()
    assert gate_of(tmp_path) == (0, "open\n")


def test_a_read_only_file_system_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found last cannot be there."""
    storage.keep_report(tmp_path, msgspec.structs.replace(GOOD, collected_at=time.time()), 3)
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(storage, "MOUNTS", mounts)
    line = f"36 35 {os.major(device)}:{os.minor(device)} / / ro,noatime - ext4 /dev/sda1"
    mounts.write_text(f"{line} rw\n")
    assert gate_of(tmp_path)[0] == 0
    mounts.write_text(f"{line} ro,errors=remount-ro\n")
    assert gate_of(tmp_path)[0] == 11


def test_findings_that_another_machine_has_kept(tmp_path: Path) -> None:
    """Of a copied disk, by the machine or the host's name: neither closed nor open by them."""
    mine = HostReport("h", NOW, 1, (), (), boot="b2", machine="m2")
    for host, machine in (("h", "m1"), ("g", "")):
        other = FleetFindings("r", NOW, (lossy(),), host=host, boot="b1", machine=machine)
        assert gate(mine, NOW + 1, 60, fleet=other, host="h", boot="b2", machine="m2").open is None
        assert (
            with_open_findings(other, FleetFindings("s", NOW, (), host="h", boot="b2", machine="m2")).earlier
            == ()
        )
    own = FleetFindings("r", NOW, (lossy(),), host="h", boot="b1", machine="m2")
    assert gate(mine, NOW + 1, 60, fleet=own, host="h", boot="b2", machine="m2").open is False
    other_report = msgspec.structs.replace(mine, machine="m1", boot="b1")
    assert gate(other_report, NOW + 1, 60, host="h", boot="b2", machine="m2").open is None
    assert machine_of("x") not in ("", "x")
    assert machine_of("") == ""


def test_an_agent_with_a_name_of_its_own_survives_a_reboot() -> None:
    """Its name in the fleet is not the kernel's, and the kernel's is what is compared."""
    mine = HostReport("fleet-17", NOW, 1, (), (), boot="b1", machine="m", hostname="ip-10-0-0-9")
    kept = FleetFindings(
        "r", NOW, (), host="fleet-17", boot="b1", machine="m", hostname="ip-10-0-0-9.internal"
    )
    now: dict[str, Any] = {"host": "ip-10-0-0-9", "boot": "b2", "machine": "m"}
    since = msgspec.structs.replace(mine, boot="b2")
    assert gate(since, NOW + 1, 60, fleet=kept, **now).open is True
    [reason] = gate(mine, NOW + 1, 60, fleet=kept, **now).reasons
    assert "started anew" in reason
    # A copied disk has the same machine-id, and another name.
    assert gate(mine, NOW + 1, 60, fleet=kept, **{**now, "host": "ip-10-0-0-10"}).open is None


@pytest.mark.parametrize("hours", ["nan", "inf", "-1", "0"])
def test_an_age_that_is_none_is_refused(hours: str, tmp_path: Path) -> None:
    """Nothing is ever older than that."""
    result = CliRunner().invoke(command, ["gate", "--state", str(tmp_path), "--max-age", hours])
    assert result.exit_code == 2


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Pins what the host does not have."""
    file = tmp_path / "profile.yaml"
    file.write_text('roles: {"*": {mtu: "1500"}}\n')
    return file


def audit_of_one_value(name: str, _reader: object) -> HostReport:
    return HostReport(name, time.time(), 1, (), (Value("mtu", "host: r", "eth1", "9000"),))


def test_the_gate_knows_what_a_profile_wants(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`local --keep --sla`: the report that is kept has it; an audit without the profile does not open the gate."""
    monkeypatch.setattr(local_module, "audit_host", audit_of_one_value)
    state = tmp_path / "state"
    keep = ["local", "--keep", "--state", str(state)]
    assert CliRunner().invoke(command, [*keep, "--sla", str(profile)]).exit_code == 10
    assert gate_of(state)[0] == 10
    CliRunner().invoke(command, keep)
    assert gate_of(state)[0] == 10
    profile.write_text('roles: {"*": {mtu: "9000"}}\n')
    assert CliRunner().invoke(command, [*keep, "--sla", str(profile)]).exit_code == 0
    assert gate_of(state)[0] == 0


def test_results_are_printed_where_they_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that fails is a warning, and what is written in the end comes after what is printed."""
    saved = run_of(lossy(), peers="a")

    def runs(_options: object, checkpoint: Any) -> Run:
        checkpoint(saved)
        checkpoint(saved)
        return saved

    monkeypatch.setattr(fleet_audit, "run_fleet", runs)
    closed_disk(monkeypatch)
    arguments = ["run", "--hosts", "h", "--output", "json", "--save", str(tmp_path / "r.json")]
    result = CliRunner().invoke(command, arguments)
    assert result.stderr.count("No space left") == 1
    assert json.loads(result.stdout)["findings"][0]["summary"] == "lossy"
    assert isinstance(result.exception, UserError)


def test_reports_that_an_agent_keeps_are_shown_and_compared(tmp_path: Path) -> None:
    """As runs over one host."""
    storage.keep_report(tmp_path, report(("memlock", "", Status.PASSED)), 3)
    later = msgspec.structs.replace(report(("memlock", "", Status.FAILED)), collected_at=NOW + 60)
    storage.keep_report(tmp_path, later, 3)
    first, second = sorted(str(file) for file in tmp_path.glob("2*.json"))
    shown = CliRunner().invoke(command, ["show", second])
    assert (shown.exit_code, "memlock" in shown.output) == (0, True)
    changed = CliRunner().invoke(command, ["diff", first, second])
    assert (changed.exit_code, changed.output.splitlines()[0]) == (10, "+ error memlock h: s")


def test_metrics_have_what_the_fleet_has_found() -> None:
    """By severity and check, with what is still open."""
    kept = with_open_findings(of_host(run_of(lossy(), peers="a"), "h"), of_host(run_of(), "h"))
    exposition = Exposition()
    expose(GOOD, exposition, kept)
    text = exposition.render().decode()
    assert 'fabricpulse_audit_open_findings{check="path-loss",severity="error"} 1\n' in text.replace(
        'severity="error",check="path-loss"', 'check="path-loss",severity="error"'
    )
    assert f"fabricpulse_audit_fleet_last_run_timestamp_seconds {NOW:.0f}\n" in text


def test_a_check_that_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without a default route, say: neither the exit code nor a label is by it, and it is shown."""
    found = run_of(Finding("default-gateway", "front-end", "error", "h", "", "no default route"), peers="a")
    monkeypatch.setattr(fleet_audit, "run_fleet", lambda _options, _checkpoint: found)
    arguments = ["run", "--hosts", "h"]
    assert CliRunner().invoke(command, arguments).exit_code == 10
    result = CliRunner().invoke(command, [*arguments, "--ignore", "default-gateway"])
    assert (result.exit_code, "no default route" in result.output) == (0, True)
    (tmp_path / "run.json").write_bytes(storage.encode(found))
    labels = ["labels", str(tmp_path / "run.json"), "--output", "json"]
    states = [
        [one["audit"] for one in json.loads(CliRunner().invoke(command, arguments).stdout)]
        for arguments in (labels, [*labels, "--ignore", "default-gateway"])
    ]
    assert states == [["failed", "passed"], ["passed", "passed"]]


@pytest.mark.parametrize("name", ["last.json", "fleet.json", "last.lost.json"])
def test_a_result_of_which_nobody_can_say_whether_it_is_there_opens_no_gate(
    name: str, tmp_path: Path
) -> None:
    """It may have found an error."""
    storage.keep_report(tmp_path, msgspec.structs.replace(GOOD, collected_at=time.time()), 3)
    assert gate_of(tmp_path)[0] == 0
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(name)
    code, _ = gate_of(tmp_path)
    assert code == (0 if name == "last.lost.json" else 1)


@pytest.mark.parametrize("name", ["last", "fleet"])
def test_what_cannot_be_read_is_not_forgotten(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its errors may be open: the next result does not take its place as if there had been none. Once it can be read
    again it does.
    """
    good, found = msgspec.structs.replace(GOOD, collected_at=time.time()), of_host(run_of(), "h")

    def keep() -> None:
        if name == "last":
            storage.keep_report(tmp_path, good, 3)
        else:
            storage.keep_fleet(tmp_path, found)

    def unreadable(path: Path, _: object) -> None:
        raise UserError(f"cannot read {path}") from OSError(errno.EIO, "Input/output error")

    storage.keep_report(tmp_path, good, 3)
    storage.keep_fleet(tmp_path, found)
    assert gate_of(tmp_path)[0] == 0
    why = rf"cannot keep the audit: \S+/{name}\.lost\.json may have errors .* cannot be read: Input/output error"
    with monkeypatch.context() as patch, pytest.raises(UserError, match=why):
        patch.setattr(storage, "read", unreadable)
        keep()
    assert gate_of(tmp_path)[0] == 11
    keep()
    assert gate_of(tmp_path)[0] == 0
