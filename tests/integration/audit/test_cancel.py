"""`audit run` on a lab that is cut short in each of its phases: nothing of it is left on a host, what it has saved is
no whole run, agents hold none of its findings, and the next run works.

The phases are the audits of hosts, echoes, datagrams, TCP, both directions at once, the listening to switches, the
plugin's ring and one of NCCL itself, by a stand-in for torch. RDMA has none here: tests/rdma. What ends them: Ctrl-C, a
client or an agent that is killed, a coordinator that is killed.
"""

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.fixtures.audit.gpu_agent import STUCK, hangs
from tests.fixtures.audit.paths import only_busy
from tests.fixtures.waiting import wait_for
from tests.integration.audit.conftest import CLI, GPU_CLI, LabAudits
from tests.integration.audit.test_jobs import moved
from tests.integration.audit.test_resume import counted

from fabricpulse.audit.model import Run
from fabricpulse.lab import Lab
from fabricpulse.lab.process import LabProcess

pytestmark = [pytest.mark.root, pytest.mark.slow]

PAIR = ("--hosts", "h0,h1")
SENT, AUDITED = 'fabricpulse_audit_transfers_total{direction="sent"}', "fabricpulse_audit_runs_total"
# The kernel's names of processes have 15 letters.
RING = "fabricpulse-rin"
# Of two hosts whose NICs carry nothing but neighbours and what routers say.
QUIET_BYTES = 20_000
LONG_TCP = ("--transfers", "--yes", "--rate", "50", "--seconds", "4", "--datagrams", "100", "--no-duplex")
LONG_UDP = ("--transfers", "--yes", "--rate", "20", "--seconds", "0.3", "--datagrams", "1500", "--no-duplex")
DUPLEX = ("--transfers", "--yes", "--rate", "50", "--seconds", "2", "--datagrams", "100")
RINGS = ("--nccl", "--yes", "--ring-seconds", "3")
TORCH = ("--nccl", "--yes", "--ring-seconds", "0.1")
WIRING = ("--wiring-wait", "8")
PHASES = {
    "hosts": (),
    "echoes": (),
    "datagrams": LONG_UDP,
    "tcp": LONG_TCP,
    "duplex": DUPLEX,
    "wiring": WIRING,
    "ring": RINGS,
    "torch": TORCH,
}


class Watched:
    """What an audit has on the hosts of a lab."""

    def __init__(self, lab: Lab, audits: LabAudits) -> None:
        self._lab = lab
        self._audits = audits
        self._sockets = self._agents_sockets()
        self._findings = self._published()
        self._sent = sum(counted(lab, SENT))
        self._bytes = self._moved()
        self._audited = counted(lab, AUDITED)

    def has_begun(self, phase: str) -> bool:
        """Whether the run is in the midst of a phase."""
        if phase == "hosts":
            return counted(self._lab, AUDITED, ("h0",))[0] > self._audited[0]
        if phase == "echoes":
            return self._echoes() > 0
        if phase == "ring":
            return self._ranks(RING) == 2 and self._moved() - self._bytes > 1_000_000
        if phase == "torch":
            return self._ranks(STUCK) == 2
        if phase == "wiring":
            return self._listeners() > 0
        if phase == "duplex":
            return self._both_ways()
        # A transfer sends all its datagrams first: 100 of them are less than a tenth of what TCP brings.
        least = 100_000 if phase == "datagrams" else 1_000_000
        return sum(counted(self._lab, SENT)) > self._sent and self._moved() - self._bytes > least

    def has_no_rank(self) -> bool:
        """Whether no rank of a ring runs in the lab."""
        return self._ranks(RING, STUCK) == 0

    def wait_until_nothing_is_left(self, *, published: bool = False) -> None:
        """Of processes, sockets, files and traffic. published : agents may hold other findings than before."""
        wait_for(self.has_no_rank, 30, "the ranks to be gone")
        wait_for(lambda: self._echoes() == 0, 30, "the echoes to end")
        wait_for(lambda: self._listeners() == 0, 30, "nobody to listen to switches")
        wait_for(
            lambda: self._agents_sockets() <= self._sockets, 30, "the sockets of the agents to be closed"
        )
        wait_for(self._is_quiet, 30, "the NICs to be quiet")
        assert [*self._audits.temporary.iterdir()] == []
        assert published or self._published() == self._findings

    def _is_quiet(self) -> bool:
        before = self._moved()
        self._lab.host("h0").run(["sleep", "0.5"])
        return self._moved() - before < QUIET_BYTES

    def _moved(self) -> int:
        return sum(moved(self._lab, host) for host in ("h0", "h1"))

    def _both_ways(self) -> bool:
        """Whether a NIC sends and receives far more than acknowledgements."""
        files = [f"/sys/class/net/rail0/statistics/{way}_bytes" for way in ("rx", "tx")]
        read = ["sh", "-c", f"cat {' '.join(files)}; sleep 0.2; cat {' '.join(files)}"]
        rx, tx, later_rx, later_tx = map(int, self._lab.host("h0").run(read).stdout.split())
        return min(later_rx - rx, later_tx - tx) > 300_000

    def _echoes(self) -> int:
        return self._lines("/proc/net/icmp")

    def _listeners(self) -> int:
        """Sockets that receive frames of LLDP."""
        return self._lines("/proc/net/packet")

    def _lines(self, table: str) -> int:
        """Of a table of sockets, of both hosts."""
        read = (self._lab.host(host).run(["cat", table]).stdout for host in ("h0", "h1"))
        return sum(len(text.splitlines()) - 1 for text in read)

    def _ranks(self, *programs: str) -> int:
        names = (
            self._lab.host("h0")
            .run(["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null; true"])
            .stdout.split("\n")
        )
        return sum(map(names.count, programs))

    def _agents_sockets(self) -> int:
        found = 0
        for agent in self._audits.agents.values():
            for descriptor in Path(f"/proc/{agent.outer_pid}/fd").iterdir():
                try:
                    found += str(descriptor.readlink()).startswith("socket:")
                except FileNotFoundError:
                    continue
        return found

    def _published(self) -> list[bytes]:
        return [self._audits.published(host) for host in ("h0", "h1")]


@contextmanager
def held_in(lab: Lab, audits: LabAudits, phase: str) -> Iterator[None]:
    """What makes a phase long enough to be met: a host that does not answer, cables that carry nothing."""
    with ExitStack() as stack:
        if phase == "hosts":
            audits.agents["h1"].suspend()
            stack.callback(audits.agents["h1"].resume)
        if phase == "echoes":
            for rail in ("rail0", "rail1"):
                stack.enter_context(lab.host("h1").nic(rail).black_hole())
        if phase == "torch":
            hangs(audits.torch).touch()
            stack.callback(hangs(audits.torch).unlink)
        yield


def of_paths(run: Run) -> list[str]:
    own = [f for f in run.findings if f.check.startswith(("path-", "nccl-")) and not only_busy(f)]
    return [f"{f.check} {f.host} {f.subject}" for f in own]


@pytest.fixture
def gpus(shared_lab: Lab, run: LabAudits, phase: str) -> Iterator[None]:
    """While torch is played, both hosts have a GPU."""
    hosts = [shared_lab.host(host) for host in ("h0", "h1")] if phase == "torch" else []
    for host in hosts:
        run.restart_agent(host, GPU_CLI)
    yield
    for host in hosts:
        run.restart_agent(host)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_is_cut_short_leaves_nothing(shared_lab: Lab, run: LabAudits, phase: str) -> None:
    """Ctrl-C, then SIGKILL of the client, then of an agent: that of the third run ends by itself and names the host."""
    options = PHASES[phase] + (("--wiring-file", str(run.wiring)) if phase == "wiring" else ())
    for end in ("SIGINT", "SIGKILL", "agent"):
        watched = Watched(shared_lab, run)
        with held_in(shared_lab, run, phase):
            process = run.start(20, *PAIR, *options)
            wait_for(lambda: watched.has_begun(phase), 120, f"the midst of {phase}", poll_s=0.05)  # noqa: B023
            if end == "agent":
                run.agents["h1"].kill()
                run.agents["h1"].wait(10)
                # No agent waits for what it has started.
                wait_for(watched.has_no_rank, 10, "the ranks to be gone")
            else:
                process.send_signal(signal.Signals[end])
                process.wait(30)
                assert not run.saved.exists() or run.read().cancelled, end
        if end == "agent":
            said = ended_without(shared_lab, run, process, GPU_CLI if phase == "torch" else CLI)
            assert "h1" in said, (phase, said)
            watched.wait_until_nothing_is_left(published=True)
        else:
            watched.wait_until_nothing_is_left()
    found = run(20, *PAIR, *options)
    assert (found.cancelled, of_paths(found)) == (False, [])
    assert {report.host for report in found.hosts} == {"h0", "h1"}
    assert all(ring.error == "" for ring in found.rings)
    assert any(ring.torch for ring in found.rings) == (phase == "torch")


def ended_without(lab: Lab, run: LabAudits, process: LabProcess, cli: Sequence[str]) -> set[str]:
    """The hosts that a run names which ends by itself, its agent being gone; which is started again then."""
    process.wait(180)
    said = run.read()
    run.restart_agent(lab.host("h1"), cli)
    named = {f.host for f in said.findings if f.check in ("host-silent", "path-untested", "wiring-unknown")}
    text = " ".join([*said.notes, *(ring.error for ring in said.rings)])
    return named | set(re.findall(r"\bh\d\b", text))


def test_a_coordinator_that_is_killed_is_not_missed(shared_lab: Lab, run: LabAudits, tmp_path: Path) -> None:
    """A run has read the fleet when it begins: it goes through all phases and is whole. The next one says what it
    cannot read, and asks no host for anything."""
    (tmp_path / "coordinator.yaml").write_text(f"membership: {shared_lab.write_membership()}\n")
    command = [*(sys.executable, "-Im", "fabricpulse.core.cli"), "clocksync", "coordinator"]
    coordinator = shared_lab.mgmt.popen([*command, "--config", str(tmp_path / "coordinator.yaml")])
    coordinator.wait_for_output("event=listening")
    url = ("--coordinator", "http://127.0.0.1:9614")
    short = ("--transfers", "--nccl", "--yes", "--rate", "50", "--seconds", "0.3", "--ring-seconds", "0.2")
    watched = Watched(shared_lab, run)
    run.agents["h1"].suspend()
    try:
        process = run.start(30, *url, *PAIR, *short)
        wait_for(lambda: watched.has_begun("hosts"), 120, "the first host to be asked", poll_s=0.05)
        coordinator.kill()
        coordinator.wait(10)
    finally:
        run.agents["h1"].resume()
    process.wait(180)
    found = run.read()
    assert (found.cancelled, of_paths(found)) == (False, [])
    assert [ring.error for ring in found.rings] == [""] * 4
    watched.wait_until_nothing_is_left(published=True)
    before = counted(shared_lab, AUDITED)
    process = run.start(30, *url, *PAIR, *short)
    assert process.wait(60) != 0
    assert "cannot read the membership" in process.output()
    assert (run.saved.exists(), counted(shared_lab, AUDITED)) == (False, before)
