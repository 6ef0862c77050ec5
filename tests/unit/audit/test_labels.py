"""A run as labels of Kubernetes nodes."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
from click.testing import CliRunner

from fabricpulse.audit.command import command
from fabricpulse.audit.model import Finding, HostReport, Run
from fabricpulse.audit.report.labels import kubectl_lines, node_labels
from fabricpulse.audit.storage import encode

NASTY = "x'; reboot; echo $(id) `id` \n"


def finding(check: str, host: str, severity: str = "error", summary: str = "s") -> Finding:
    return Finding(check, "back-end", severity, host, "eth1", summary)  # type: ignore[arg-type]


def run_of(*findings: Finding, cancelled: bool = False) -> Run:
    reports = tuple(HostReport(host, 0, 1, (), ()) for host in ("good", "bad", "untested", "worn"))
    return Run(
        "20261122T190000Z", 0, 1, ("good", "bad", "untested", "worn", "silent"), reports, findings, cancelled
    )


FOUND = (
    finding("path-loss", "bad"),
    finding("memlock", "bad"),
    finding("path-untested", "untested", "warning"),
    finding("cpu-governor", "worn", "warning"),
    finding("host-silent", "silent"),
)


def test_states() -> None:
    """An error fails; what was not tested, or did not answer, is unknown; a warning passes."""
    states = {one.host: (one.state, one.reason) for one in node_labels(run_of(*FOUND))}
    assert states == {
        "good": ("passed", ""),
        "bad": ("failed", "path-loss eth1: s (and 1 more)"),
        "untested": ("unknown", "path-untested eth1: s"),
        "worn": ("passed", ""),
        "silent": ("unknown", "host-silent eth1: s"),
    }


def test_a_suspect_is_not_failed() -> None:
    """Nor has it passed; a host with an error of its own has failed all the same."""
    doubt = Finding("path-loss", "back-end", "error", "", "worn e > bad e", "s", suspects=("worn", "bad"))
    states = {one.host: (one.state, one.reason) for one in node_labels(run_of(doubt, finding("a", "bad")))}
    assert states["worn"] == ("unknown", "path-loss worn e > bad e: s")
    assert states["bad"] == ("failed", "a eth1: s")
    assert states["good"] == ("passed", "")


def test_nobody_passes_a_run_that_was_cancelled() -> None:
    """What was found stays found; the rest is unknown, also a host of which nothing came."""
    states = {one.host: one.state for one in node_labels(run_of(finding("path-loss", "bad"), cancelled=True))}
    assert states == {
        "good": "unknown",
        "bad": "failed",
        "untested": "unknown",
        "worn": "unknown",
        "silent": "unknown",
    }


def test_what_a_host_says_is_no_command() -> None:
    """A shell sees one argument, whatever the text."""
    run = run_of(finding("path-loss", "bad", summary=NASTY))
    lines = list(kubectl_lines(run, node_labels(run)))
    assert len(lines) == 10
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "kubectl"
        assert len(words) == (6 if words[1] == "label" else 7)
    assert any("reboot" in line for line in lines)


def test_command(tmp_path: Path) -> None:
    """From a saved run."""
    file = tmp_path / "run.json"
    file.write_bytes(encode(run_of(*FOUND)))
    text = CliRunner().invoke(command, ["labels", str(file)])
    assert "kubectl label --overwrite node bad fabricpulse.io/audit=failed\n" in text.output
    reported = CliRunner().invoke(command, ["labels", str(file), "--output", "json"])
    assert {one["node"]: one["audit"] for one in json.loads(reported.output)}["silent"] == "unknown"
    assert msgspec.json.decode(file.read_bytes(), type=Run).asked[0] == "good"


def test_the_gate_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """A health check runs it often, and on a busy host imports cost more than the answer."""
    code = (
        "import sys\n"
        "from fabricpulse.core.cli import cli\n"
        f"cli(['audit', 'gate', '--state', {str(tmp_path)!r}], standalone_mode=False)\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "fabricpulse.audit.report.gate" in loaded
    heavy = {
        "yaml",
        "rich",
        "aiohttp",
        "asyncio",
        "fabricpulse.audit.host.attributes",
        "fabricpulse.core.config",
    }
    assert loaded & heavy == set()
