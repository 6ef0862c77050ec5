"""A host whose clock a real chronyd steers carries UTC into the fleet.

chronyd runs as installations have it, without -x and with rtcsync, on the virtual clock of its host, which is seconds
off and drifts. Its server shows the kernel's time, the truth. Neither may set the clock of the machine: they have no
CAP_SYS_TIME, and the calls are replaced (tests/native/clocks/virtual_timex_preload.c).
"""

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.bench.clocksync.peers import build_preload
from tests.fixtures.debian_tool import debian_tool
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have, errors_ns, read
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus

pytestmark = pytest.mark.root

ANCHOR = "h0"
UNPRIVILEGED = ["setpriv", "--bounding-set=-sys_time"]
# struct timex as words: 0 modes, 1 offset, 2 freq, 3 maxerror, 4 esterror, 5 status, 9 and 10 time, 11 tick.
TIMEX = "import ctypes, json; c = ctypes.CDLL(None, use_errno=True); t = (ctypes.c_long * 40)()\n"
ADJ_MAXERROR = 0x4


def kernel_discipline() -> list[int]:
    """What steers the clock of this machine: offset, frequency, status, tick. None of it may change."""
    words = (ctypes.c_long * 40)()
    assert ctypes.CDLL(None).adjtimex(words) >= 0
    return [words[1], words[2], words[5] & 0xFFFFFFFF, words[11]]


@dataclass
class SteeredHost:
    """The clock of the anchor, and the programs on it."""

    fleet: SyntheticFleet
    directory: Path
    clock: Path = field(init=False)
    timex: Path = field(init=False)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = build_preload(self.directory)
        self.timex = build_preload(self.directory, "virtual_timex_preload")

    def environment(self, *preloads: Path) -> dict[str, str]:
        return {**self.fleet.environment(ANCHOR), "LD_PRELOAD": ":".join(map(str, preloads))}

    def chronyd(self, name: str, arguments: list[str], lines: list[str], environment: dict[str, str]) -> None:
        program = debian_tool("chrony", "chronyd")
        if program is None:
            pytest.skip("chronyd is not there and its package cannot be had")
        place = self.directory / name
        place.mkdir(mode=0o700)
        common = [f"bindcmdaddress {place}/command", f"pidfile {place}/pid", "cmdport 0", "user root"]
        (place / "chrony.conf").write_text("\n".join([*common, *lines]) + "\n")
        with (place / "log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*UNPRIVILEGED, program, "-d", "-f", f"{place}/chrony.conf", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def python(self, text: str) -> str:
        """Runs `text` on the host, where adjtimex is the virtual clock's."""
        return subprocess.run(
            [*UNPRIVILEGED, sys.executable, "-c", TIMEX + text],
            env=self.environment(self.timex),
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def maxerror_ns(self) -> int:
        return 1000 * int(self.python("c.adjtimex(t); print(t[3])"))

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


@pytest.fixture
def steered(fleet: SyntheticFleet, tmp_path: Path) -> Iterator[SteeredHost]:
    """Nothing runs on it yet; at the end the clock of this machine is as it was."""
    before = kernel_discipline()
    made = SteeredHost(fleet, tmp_path)
    yield made
    made.stop()
    assert kernel_discipline() == before, "the clock of this machine was touched"


def anchor_bound_ns(daemons: Daemons) -> int:
    """What the sidecar of the anchor reports."""
    document = json.loads(daemons.get(f"http://127.0.0.1:{daemons.ports[ANCHOR]}/api/v1/clocksync/status"))
    bound = document["anchor_bound_ns"]
    assert isinstance(bound, int), document
    return bound


def bounds_ns(fleet: SyntheticFleet) -> list[int]:
    return [shown.bound_ns for host in HOSTS if (shown := read(fleet, host)) is not None]


def test_chronyd_steers_the_anchor_and_the_fleet_shows_utc(
    fleet: SyntheticFleet, daemons: Daemons, steered: SteeredHost
) -> None:
    """The fleet waits for the anchor and begins on UTC; its bound is the kernel's; without chronyd it has no anchor."""
    daemons.executed = True  # as the anchor: a fleet that starts long before its anchor begins without it
    daemons.coordinator()
    preload = {"LD_PRELOAD": str(steered.timex)}
    daemons.sidecar(ANCHOR, settings=["anchor: {kind: system}"], environment=preload)
    for host in HOSTS[1:]:
        daemons.sidecar(host)
    log = daemons.log
    wait_for(lambda: "hosts say how far they are from UTC" in log("coordinator"), 15, "the anchor is awaited")
    assert "no anchor: the kernel says" in log(ANCHOR)
    assert not any(all_have(fleet, [host], ClockStatus.SYNCHRONIZED) for host in HOSTS)

    port = reserved_port()
    truth = [f"port {port}", "local stratum 1", "allow 127.0.0.1"]
    steered.chronyd("server", ["-x"], truth, {})
    steering = ["port 0", f"server 127.0.0.1 port {port} minpoll -2 maxpoll 0 iburst xleave"]
    steered.chronyd(
        "client",
        [],
        [*steering, "makestep 0.01 3", "rtcsync"],
        steered.environment(steered.clock, steered.timex),
    )
    wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 30, "synchronized")
    assert max(map(abs, errors_ns(fleet, HOSTS))) < 1_000_000, "begun on UTC, not slewed to it"
    assert min(bounds_ns(fleet)) >= anchor_bound_ns(daemons) / 2, (
        "no host is surer of UTC than the anchor was"
    )
    watch = Watch(fleet)
    watch.until(lambda: max(map(abs, errors_ns(fleet, HOSTS))) < 5_000, 30, "UTC within 5 us")
    assert "anchor of fleet time" in log(ANCHOR)

    # What the anchor says of itself is what its kernel says. Without chronyd that grows by 500 us a second.
    # (An answer that a busy machine delays makes chronyd unsure for a while.)
    watch.until(lambda: 0 < anchor_bound_ns(daemons) < 1_000_000, 30, "chronyd is sure within 1 ms")
    steered.running["client"].kill()
    left_ns = steered.maxerror_ns()
    watch.until(lambda: anchor_bound_ns(daemons) > left_ns + 1_500_000, 10, "the uncertainty grows")
    assert anchor_bound_ns(daemons) <= steered.maxerror_ns()
    errors_ns(fleet, HOSTS)

    # Nine hours later it is 16 s, and the kernel says so. Not to wait for them, the kernel is set as if they were over.
    said = log(ANCHOR).count("no anchor: the kernel says")
    steered.python(f"t[0], t[3] = {ADJ_MAXERROR}, 16_000_000; assert c.adjtimex(t) == 5")
    watch.until(lambda: log(ANCHOR).count("no anchor: the kernel says") > said, 10, "the anchor is dropped")
    watch.until(
        lambda: not any(all_have(fleet, [host], ClockStatus.SYNCHRONIZED) for host in HOSTS),
        15,
        "without its only anchor the fleet is in holdover",
    )
    errors_ns(fleet, HOSTS)


@pytest.mark.slow
def test_a_coordinator_that_is_slow_to_answer_is_not_gone(
    fleet: SyntheticFleet, daemons: Daemons, steered: SteeredHost
) -> None:
    """It waits for the anchor, and is held up for longer than a host that finds no coordinator at all would wait.

    Nobody begins a timeline of its own beside the one that is about to begin.
    """
    daemons.executed = True  # as the anchor: a fleet that starts long before its anchor begins without it
    daemons.coordinator()
    settings = ["http_client: {timeout_s: 10}", "datagrams: false"]
    preload = {"LD_PRELOAD": str(steered.timex)}
    daemons.sidecar(ANCHOR, settings=["anchor: {kind: system}", *settings], environment=preload)
    for host in HOSTS[1:]:
        daemons.sidecar(host, settings=settings)
    waits = "hosts say how far they are from UTC"
    wait_for(lambda: waits in daemons.log("coordinator"), 15, "the anchor is awaited")
    answered = "a coordinator answers"
    wait_for(lambda: all(answered in daemons.log(host) for host in HOSTS), 20, "all are answered")
    daemons.signal("coordinator", signal.SIGSTOP)
    time.sleep(4)  # that nothing happens is the promise
    daemons.signal("coordinator", signal.SIGCONT)
    assert not any("this host's clock begins it" in daemons.log(host) for host in HOSTS)


@pytest.mark.parametrize(
    ("call", "moved_s"),
    [
        ("t[0], t[2] = 2, 100 << 16; assert c.adjtimex(t) == 5", 0),
        ("t[0], t[2] = 2, 100 << 16; assert c.ntp_adjtime(t) == 5", 0),
        ("t[0], t[2] = 2, 100 << 16; assert c.clock_adjtime(0, t) == 5", 0),
        ("t[0], t[11] = 0x4000, 10_001; assert c.adjtimex(t) == 5", 0),
        ("t[0], t[9], t[10] = 0x2100, 7, 0; c.adjtimex(t)", 7),
        ("now = (ctypes.c_long * 2)(int(time.time()) + 7, 0); assert c.clock_settime(0, now) == 0", 7),
        ("now = (ctypes.c_long * 2)(int(time.time()) + 7, 0); assert c.settimeofday(now, None) == 0", 7),
        ("t[0], t[1] = 1, 1000; assert c.adjtimex(t) == -1", 0),
        ("d = (ctypes.c_long * 2)(0, 1000); assert c.adjtime(d, None) == -1", 0),
        ("assert c.settimeofday(None, (ctypes.c_int * 2)(60, 0)) == -1", 0),
        ("assert c.clock_settime(1, t) == -1", 0),
    ],
)
def test_what_sets_the_clock_sets_the_virtual_one(
    fleet: SyntheticFleet, steered: SteeredHost, call: str, moved_s: int
) -> None:
    """Each call that could set the clock of this machine acts on the host's page, or is refused."""
    fleet.set_clock(ANCHOR, 0)
    steered.python("import time\n" + call)
    now = time.time_ns()
    assert abs(fleet.clocks[ANCHOR].from_kernel(now) - now - moved_s * 10**9) < 1_000_000_000
    faster = fleet.clocks[ANCHOR].from_kernel(now + 10**9) - fleet.clocks[ANCHOR].from_kernel(now) - 10**9
    assert faster == (100_000 if "<< 16" in call or "0x4000" in call else 0)
