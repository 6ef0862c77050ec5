"""The HTML page, and what reads a report afterwards: gate and metrics."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from tests.fixtures.audit.runs import large_run

from fabricpulse.audit.compare.findings import of_host
from fabricpulse.audit.expose import expose
from fabricpulse.audit.model import (
    Finding,
    FleetFindings,
    HostReport,
    Measurement,
    Outcome,
    Result,
    Run,
    Status,
)
from fabricpulse.audit.report.gate import gate
from fabricpulse.audit.report.matrices import DIGITS, matrices
from fabricpulse.audit.report.page import page
from fabricpulse.core.metrics.exposition import Exposition

NASTY = '</script><script>alert(1)</script><!--data--><img src=x onerror=alert(1)>"&'


class Elements(HTMLParser):
    """Counts elements, and keeps the text of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]


def elements(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    return found


def nasty_run() -> Run:
    outcome = Outcome(Status.FAILED, NASTY, NASTY[:128], {NASTY[:100]: NASTY})
    report = HostReport(NASTY, 0, 1, (Result("memlock", "node", "error", outcome),), ())
    finding = Finding("memlock", "node", "error", NASTY, NASTY, NASTY, {"line": NASTY})
    return Run("x", 0, 1, (NASTY,), (report,), (finding,), notes=(NASTY,))


def test_what_hosts_say_is_never_markup() -> None:
    """Two scripts, the page's own, whatever a host writes; no image; the data is what went in."""
    text = page(nasty_run())
    found = elements(text)
    assert found.counts["script"] == 2
    assert "img" not in found.counts
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert data["hosts"] == [NASTY]
    assert data["findings"][0][4] == NASTY


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """It opens from disk: no link, no source, and a policy that forbids requests."""
    text = page(large_run(3, 5))
    assert elements(text).links == []
    assert "default-src 'none'" in text


def test_size_of_a_large_run() -> None:
    """1,000 hosts with 60 checks, a finding in fifty: 5 MB at most."""
    assert len(page(large_run(1000, 60)).encode()) <= 5_000_000


def test_matrices_of_a_large_run() -> None:
    """1,000 hosts with 13 partners each and five kinds: the page stays small, and what failed is never left out."""
    measured = tuple(
        Measurement(
            kind, "rail0", f"gpu-{a:05}", "eth0", f"gpu-{(a + b) % 1000:05}", "eth0", 1.23456e-5, a != 7
        )
        for kind in ("bandwidth", "connectivity", "loss", "mtu", "owd")
        for a in range(1000)
        for b in range(1, 14)
    )
    text = page(msgspec.structs.replace(large_run(50, 5), measurements=measured))
    assert len(text.encode()) <= 3_000_000
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert len(data["matrices"]) == 5
    for matrix in data["matrices"]:
        ways = unpacked(matrix, data["pool"])
        assert len(ways) == matrix["of"] == 13_000
        assert sum(state == 0 for *_, state in ways) == 13
    # 60 bytes of text a way, were they not packed.
    assert len(text.encode()) <= 1_000_000


def unpacked(matrix: Any, pool: Any) -> list[tuple[str, str, float, int]]:
    """(source, target, value, state) of each way, as the page's script reads them."""
    nics, ways = pool[matrix["nics"]], pool[matrix["ways"]]
    codes, values, width = matrix["codes"], matrix["values"], matrix["width"]
    found = []
    for index in range(len(codes) // 2):
        at = 2 * width * index
        code = number(codes[2 * index : 2 * index + 2])
        source, target = number(ways[at : at + width]), number(ways[at + width : at + 2 * width])
        found.append((nics[source], nics[target], values[code // 3], code % 3))
    return found


def number(text: str) -> int:
    number = 0
    for character in text:
        number = number * len(DIGITS) + DIGITS.index(character)
    return number


def ways_of(hosts: int, partners: int, failed: int = -1) -> list[Measurement]:
    return [
        Measurement(
            "loss", "r", f"h{a}", "e", f"h{(a + b) % hosts}", "e", b / 7, None if b == 2 else a != failed
        )
        for a in range(hosts)
        for b in range(1, partners + 1)
    ]


def test_packed_ways_are_those_that_were_measured() -> None:
    """Value to four digits, and state."""
    measured = ways_of(95, 4, failed=3)
    packed: Any = matrices(measured)
    [matrix] = packed["matrices"]
    state = {False: 0, True: 1, None: 2}
    wanted = {
        (f"{m.source_host} e", f"{m.target_host} e", float(f"{100 * m.value:.4g}"), state[m.ok])
        for m in measured
    }
    assert set(unpacked(matrix, packed["pool"])) == wanted
    assert matrix["worst"][0] == ("h3 e", 3, 8)


def test_no_nic_is_left_out_of_a_matrix_that_is_too_large() -> None:
    """All that failed, the worst that each NIC sends and is sent, and how many there were."""
    packed: Any = matrices(ways_of(200, 10, failed=3), most=450)
    [matrix] = packed["matrices"]
    ways = unpacked(matrix, packed["pool"])
    assert (len(ways), matrix["of"]) == (450, 2000)
    assert sum(state == 0 for *_, state in ways) == 9
    everyone = {f"h{number} e" for number in range(200)}
    assert {source for source, *_ in ways} == {target for _, target, *_ in ways} == everyone


def test_like_matrices_share_their_ways() -> None:
    """Of two kinds on the same pairs one copy."""
    measured = ways_of(20, 5)
    packed: Any = matrices([*measured, *(msgspec.structs.replace(m, kind="owd") for m in measured)])
    assert len(packed["pool"]) == 2


def test_what_passed_between_hosts_is_shown_as_passed() -> None:
    """In the grid; a test that was not made is blank, and has no column if it was made on no host."""
    hosts = tuple(HostReport(name, 0, 1, (), ()) for name in "ghi")
    measured = (Measurement("loss", "r", "g", "e", "h", "e", 0, True),)
    lossy = Finding("path-loss", "back-end", "error", "h", "e", "lossy")
    run = Run("r", 0, 1, ("g", "h", "i"), hosts, (lossy,), measurements=measured)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page(run), re.S)[1])  # type: ignore[index]
    names = [check[0] for check in data["checks"]]
    assert [row[names.index("path-loss")] for row in data["grid"]] == ["p", "f", "-"]
    assert "path-bandwidth" not in names


def test_grid_has_the_worst_of_each_check() -> None:
    """One failed subject of three makes the cell red, and a finding of the fleet too."""
    run = large_run(4, 3)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page(run), re.S)[1])  # type: ignore[index]
    names = [check[0] for check in data["checks"]]
    for finding in run.findings:
        row = data["grid"][data["hosts"].index(finding.host)]
        assert row[names.index(finding.check)] == "f"
    assert sum(row.count("f") for row in data["grid"]) == len({(f.host, f.check) for f in run.findings})


def report(*results: tuple[str, str, Status], at: float = 1000.0) -> HostReport:
    made = tuple(Result(check, "node", severity, Outcome(status, "s")) for check, severity, status in results)  # type: ignore[arg-type]
    return HostReport("h", at, 0.5, made, ())


@pytest.mark.parametrize(
    ("results", "now", "options", "is_open"),
    [
        ([("a", "error", Status.PASSED)], 1000, {}, True),
        ([("a", "error", Status.FAILED)], 1000, {}, False),
        ([("a", "error", Status.UNKNOWN)], 1000, {}, True),
        ([("a", "warning", Status.FAILED)], 1000, {}, True),
        ([("a", "warning", Status.FAILED)], 1000, {"fail_on": "warning"}, False),
        ([("a", "error", Status.FAILED)], 1000, {"ignore": ("a",)}, True),
        ([], 1000 + 3600, {}, True),
        ([], 1000 + 3601, {}, None),
        ([("a", "error", Status.FAILED)], 900, {}, None),
    ],
)
def test_gate(
    results: list[tuple[str, str, Status]], now: float, options: dict[str, object], is_open: bool | None
) -> None:
    """Closed by errors alone, unless asked otherwise; an old audit, or one from the future, proves nothing."""
    answer = gate(report(*results), now, 3600, **options)  # type: ignore[arg-type]
    assert answer.open is is_open
    assert bool(answer.reasons) == (is_open is not True)


def test_gate_hears_the_fleet() -> None:
    """A fresh finding of the fleet closes. One that nothing has tested again since is no proof, nor forgotten: not
    known. An old run without one, or no run, is unknown, which closes nothing unless strict."""
    good = report(
        ("a", "error", Status.PASSED), ("b", "error", Status.UNKNOWN), ("c", "warning", Status.UNKNOWN)
    )
    lossy = FleetFindings("run", 1000, (Finding("path-loss", "back-end", "error", "h", "eth1", "lossy"),))
    closed = gate(good, 1100, 3600, fleet=lossy)
    assert (closed.open, closed.reasons, closed.unknown) == (False, ("path-loss eth1: lossy",), ("b: s",))
    assert gate(good, 1100, 3600, fleet=lossy, ignore=("path-loss",)).open is True
    old = gate(good, 1100, 3600, fleet=FleetFindings("run", -10_000, lossy.findings))
    assert (old.open, len(old.reasons)) == (None, 1)
    assert "not tested again" in old.reasons[0]
    clean = gate(good, 1100, 3600, fleet=FleetFindings("run", -10_000, ()))
    assert clean.open is True
    assert any("old" in line for line in clean.unknown)
    alone = gate(good, 1100, 3600)
    assert alone.open is True
    assert len(alone.unknown) == 2
    assert gate(good, 1100, 3600, strict=True).open is None
    assert gate(good, 1100, 3600, fleet=lossy, strict=True).open is False
    whole = report(("a", "error", Status.PASSED))
    assert gate(whole, 1100, 3600, fleet=FleetFindings("run", 1000, ()), strict=True).open is True


def test_gate_of_a_suspect_is_not_known() -> None:
    """A fault that may be this host's neither closes nor opens; an error of its own closes. A warning, or a check that
    is left out, does not count."""
    good = report(("a", "error", Status.PASSED))
    doubt = Finding("path-loss", "back-end", "error", "", "h e > g e", "lossy", suspects=("h", "g"))
    said = of_host(Run("r", 0, 1000, ("h", "g", "i"), (good,), (doubt,)), "g")
    assert of_host(Run("r", 0, 1000, ("h", "g", "i"), (good,), (doubt,)), "i").findings == ()
    answer = gate(good, 1100, 3600, fleet=said)
    assert (answer.open, answer.reasons) == (None, ("path-loss h e > g e: lossy",))
    assert gate(good, 1100, 3600, fleet=said, ignore=("path-loss",)).open is True
    closed = gate(report(("a", "error", Status.FAILED)), 1100, 3600, fleet=said)
    assert (closed.open, closed.unknown) == (False, ("path-loss h e > g e: lossy",))


def test_a_suspect_is_unknown_in_the_grid() -> None:
    """Of a fault that is one of two hosts', neither has a failure there."""
    doubt = Finding("path-loss", "back-end", "error", "", "h e > g e", "lossy", suspects=("h", "g"))
    hosts = tuple(HostReport(name, 0, 1, (), ()) for name in "hgi")
    text = page(Run("r", 0, 1, ("h", "g", "i"), hosts, (doubt,)))
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    at = [check[0] for check in data["checks"]].index("path-loss")
    letters = {host: row[at] for host, row in zip(data["hosts"], data["grid"], strict=True)}
    assert letters == {"h": "u", "g": "u", "i": "-"}


def test_no_audit_is_not_known() -> None:
    """Neither open nor closed."""
    assert gate(None, 0, 1).open is None


def test_metrics() -> None:
    """Counts by severity and status, 0 where there are none; a check that passed is 0."""
    exposition = Exposition()
    expose(
        report(("a", "error", Status.FAILED), ("a", "error", Status.FAILED), ("b", "error", Status.PASSED)),
        exposition,
    )
    text = exposition.render().decode()
    for line in (
        'fabricpulse_audit_findings{severity="error"} 2',
        'fabricpulse_audit_findings{severity="warning"} 0',
        'fabricpulse_audit_check_failed{check="a"} 2',
        'fabricpulse_audit_check_failed{check="b"} 0',
        'fabricpulse_audit_outcomes{category="node",status="passed"} 1',
        "fabricpulse_audit_last_run_timestamp_seconds 1000",
    ):
        assert f"{line}\n" in text


def test_metrics_before_the_first_audit() -> None:
    """A time of 0, and nothing that could be taken for a good host."""
    exposition = Exposition()
    expose(None, exposition)
    text = exposition.render().decode()
    assert "fabricpulse_audit_last_run_timestamp_seconds 0\n" in text
    assert "fabricpulse_audit_findings" not in text
