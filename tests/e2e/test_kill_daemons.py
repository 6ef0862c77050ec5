"""Kill -9 of any single daemon never breaks the workload, and the daemon recovers its state when started again."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.fixtures.waiting import Patience, until_answer

from fabricpulse.core.errors import UserError
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.lab.demo import names
from fabricpulse.lab.demo.daemon import Daemon
from fabricpulse.lab.demo.performance import Staged, staged
from fabricpulse.lab.demo.scenarios.base import Setting
from fabricpulse.lab.demo.stack import StackOptions
from fabricpulse.lab.demo.workload import Job
from fabricpulse.lab.tools import find_tools

pytestmark = [pytest.mark.root, pytest.mark.prometheus]

HOST, DEVICE = "h1", "rail0"
OTHERS = ("h0", "h2")
# A ring without a pause costs more processor time than all daemons together.
COMPUTE_MS = 300


class Fleet:
    """A running stage with its observers, and the questions that the test asks of it."""

    def __init__(self, stage: Staged, session: aiohttp.ClientSession) -> None:
        self.stage = stage
        self.seen = stage.observed
        self.session = session
        self.changed = asyncio.Event()

    async def wait_for(self, what: str, check: Callable[[], Any], seconds: float = 30.0) -> None:
        """Returns once `check` is true. Fails naming `what`."""
        patience = Patience(seconds)
        while not check():
            assert patience.left(), (
                f"not seen within {seconds} s: {what}; read errors: {self.seen.read_errors}"
            )
            self.changed.clear()
            await wait_with_timeout(self.changed, 0.5)

    async def ring_goes_on(self, rounds: int = 2) -> None:
        """The ring completes more rounds without an error, a corrupt byte or a long stall."""
        workload = self.seen.workload
        goal, since = workload.rounds + rounds, time.monotonic()
        await self.wait_for(f"{rounds} more rounds of the ring", lambda: workload.rounds >= goal)
        assert (workload.errors, workload.corrupt_bytes, workload.exited) == (0, 0, [])
        # Gaps are reported apart from rounds, and may come a little later.
        await self.wait_for("a report of gaps", lambda: workload.stall(since, time.monotonic()) is not None)
        stall = workload.stall(since, time.monotonic())
        assert stall is not None
        stall_ms, start, end = stall
        late_s = self.seen.lateness.of_path([f"ring on {host}" for host in self.seen.hosts], start, end)
        # No lane fails here, so nothing but the machine can stall the job.
        assert stall_ms - late_s * 1e3 <= 1000

    async def json(self, daemon: Daemon, path: str) -> Any:
        """GET of a daemon's API."""
        async with self.session.get(daemon.url + path) as response:
            response.raise_for_status()
            return await response.json(content_type=None)

    async def text(self, daemon: Daemon, path: str = "/metrics") -> str:
        """GET of a daemon's page."""
        async with self.session.get(daemon.url + path) as response:
            response.raise_for_status()
            return await response.text()

    @asynccontextmanager
    async def killed(self, daemon: Daemon) -> AsyncIterator[None]:
        """Kills a daemon, sees the ring go on without it, starts it again and waits until it is ready."""
        await asyncio.to_thread(daemon.kill)
        await self.ring_goes_on()
        yield
        daemon.start()
        await daemon.wait_ready(self.session)
        await self.ring_goes_on()


@asynccontextmanager
async def running_fleet() -> AsyncIterator[Fleet]:
    """Three hosts with everything running and observed; a NIC that was taken out of service stays out for long."""
    options = StackOptions(find_tools(), hold_s=600.0)
    async with (
        staged((3, 2), options, lambda _: None, Setting(job=Job(compute_ms=COMPUTE_MS))) as stage,
        aiohttp.ClientSession() as session,
    ):
        fleet = Fleet(stage, session)
        watches = [asyncio.create_task(watch.run(stage.observed, fleet.changed)) for watch in stage.watches]
        try:
            yield fleet
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


async def flap_until_out_of_service(fleet: Fleet) -> None:
    """The NIC flaps on its real link until the receiver has had it taken out of service."""
    port = fleet.stage.lab.host(HOST).nic(DEVICE).switch_port
    for _ in range(12):
        if fleet.seen.nic(HOST, DEVICE).in_service is False:
            break
        await asyncio.to_thread(port.set_up, False)
        await asyncio.sleep(1.2)  # the flap itself: down for longer than a NIC may be silent
        await asyncio.to_thread(port.set_up, True)
        await asyncio.sleep(1.3)  # and up for as long
    await fleet.wait_for("the NIC out of service", lambda: fleet.seen.nic(HOST, DEVICE).in_service is False)


@pytest.mark.timeout(300)
async def test_kill_each_daemon_in_turn() -> None:
    """One after the other: mesh, sidecar, coordinator, qp, node agent, receiver, Prometheus, Alertmanager."""
    if os.geteuid() != 0:
        pytest.skip("needs root to build network namespaces")
    try:
        find_tools()
    except UserError as error:
        pytest.skip(str(error))
    async with running_fleet() as fleet:
        seen, stack = fleet.seen, fleet.stage.stack
        await fleet.wait_for("a healthy mesh", lambda: all(nic.connected for _, nic in seen.nics()))
        await fleet.wait_for(
            "clocks in sync", lambda: all(host.clock.synchronized for host in seen.hosts.values())
        )
        await fleet.ring_goes_on()
        await flap_until_out_of_service(fleet)
        # The job shows it before the receiver's list of actions is asked again.
        await fleet.wait_for("the action", lambda: seen.action("nic.avoid", HOST, DEVICE) is not None)
        avoid = seen.action("nic.avoid", HOST, DEVICE)
        assert avoid is not None
        await mesh(fleet, stack.daemon(names.MESH, HOST))
        await sidecar(fleet, stack.daemon(names.SIDECAR, HOST))
        await coordinator(fleet, stack.daemon(names.COORDINATOR))
        await qp(fleet, stack.daemon(names.QP, HOST))
        await agent(fleet, stack.daemon(names.AGENT, HOST))
        await receiver(fleet, stack.daemon(names.RECEIVER))
        await prometheus(fleet, stack.daemon(names.PROMETHEUS))
        await alertmanager(fleet, stack.daemon(names.ALERTMANAGER))
        # Through all of it: one decision, carried out once.
        assert [action.id for action in seen.actions.values()] == [avoid.id]
        assert seen.nic(HOST, DEVICE).in_service is False


async def mesh(fleet: Fleet, daemon: Daemon) -> None:
    """Its NICs are seen again at once; no other host takes its own NICs for lost because a peer's daemon is gone."""
    async with fleet.killed(daemon):
        for other in OTHERS:
            # Unknown (None) while that host was itself late.
            assert all(nic.connected is not False for nic in fleet.seen.hosts[other].nics.values())
    nics = fleet.seen.hosts[HOST].nics.values()
    await fleet.wait_for(
        "the NICs of the host", lambda: all(nic.connected and nic.disconnects == 0 for nic in nics)
    )
    await fleet.wait_for(
        "all edges",
        lambda: all(host.edges and host.edges_up == host.edges for host in fleet.seen.hosts.values()),
    )


async def sidecar(fleet: Fleet, daemon: Daemon) -> None:
    """Fleet time goes on meanwhile; the new sidecar is in sync again, and no other host's clock suffers."""
    async with fleet.killed(daemon):
        for other in OTHERS:
            assert fleet.seen.hosts[other].clock.synchronized
        # Those who watch find out at their own pace.
        await fleet.wait_for(
            "the sidecar's end", lambda: f"sidecar of {HOST}" in " ".join(fleet.seen.read_errors)
        )
    clock = lambda: fleet.seen.hosts[HOST].clock  # noqa: E731
    await fleet.wait_for(
        "the clock in sync again", lambda: clock().synchronized and clock().true_error_s is not None
    )
    assert abs(clock().true_error_s or 0) <= (clock().bound_s or 0) + max(
        fleet.seen.hosts[other].clock.bound_s or 0 for other in OTHERS
    )


async def coordinator(fleet: Fleet, daemon: Daemon) -> None:
    """The sidecars hold fleet time without it, and all lease again from the new one."""
    async with fleet.killed(daemon):
        for host in fleet.seen.hosts.values():
            assert host.clock.bound_s is not None
            assert host.clock.bound_s < 0.001

    async def all_are_members() -> bool:
        return f"fabricpulse_clocksync_members {len(fleet.seen.hosts)}" in await fleet.text(daemon)

    await until_answer(all_are_members, 30, "all hosts members again")
    clocks = lambda: [host.clock for host in fleet.seen.hosts.values()]  # noqa: E731
    await fleet.wait_for("clocks in sync again", lambda: all(clock.synchronized for clock in clocks()))


async def qp(fleet: Fleet, daemon: Daemon) -> None:
    """The counters go on where they were."""
    before = sent_bytes(await fleet.text(daemon))
    async with fleet.killed(daemon):
        pass
    assert sent_bytes(await fleet.text(daemon)) >= before > 0


def sent_bytes(text: str) -> float:
    """All bytes that a host's jobs have sent."""
    lines = [line for line in text.splitlines() if line.startswith("fabricpulse_qp_sent_bytes_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def agent(fleet: Fleet, daemon: Daemon) -> None:
    """What is out of service stays out, without it and with the new one."""
    async with fleet.killed(daemon):
        assert fleet.seen.nic(HOST, DEVICE).in_service is False
    receiver_daemon = fleet.stage.stack.daemon(names.RECEIVER)
    now = time.time()

    async def is_back() -> bool:
        status = await fleet.json(receiver_daemon, "/api/v1/status")
        (agent,) = (agent for agent in status["agents"] if agent["host"] == HOST)
        return bool(agent["seen_at"] > now and agent["processes"] == 1)

    await until_answer(is_back, 20, "the new agent and its job in the receiver's status")
    assert fleet.seen.nic(HOST, DEVICE).in_service is False


async def receiver(fleet: Fleet, daemon: Daemon) -> None:
    """Its journal has the decision still, and nothing is decided twice."""
    before = await fleet.json(daemon, "/api/v1/actions")
    epoch = (await fleet.json(daemon, "/api/v1/status"))["epoch"]
    async with fleet.killed(daemon):
        assert fleet.seen.nic(HOST, DEVICE).in_service is False
    status = await fleet.json(daemon, "/api/v1/status")
    assert status["epoch"] > epoch
    assert await fleet.json(daemon, "/api/v1/actions") == before
    await asyncio.sleep(2 * 1.5)  # two rounds of the agents' long poll and report
    assert await fleet.json(daemon, "/api/v1/actions") == before
    assert fleet.seen.nic(HOST, DEVICE).in_service is False


async def prometheus(fleet: Fleet, daemon: Daemon) -> None:
    """It scrapes everything again, and its history is still there."""
    async with fleet.killed(daemon):
        pass

    async def all_are_up() -> bool:
        targets = (await fleet.json(daemon, "/api/v1/targets"))["data"]["activeTargets"]
        return all(target["health"] == "up" for target in targets)

    await until_answer(all_are_up, 20, "all targets up again")
    query = "/api/v1/query?query=max_over_time(fabricpulse_nic_disconnects_total[10m])"
    history = (await fleet.json(daemon, query))["data"]["result"]
    worst = max(float(series["value"][1]) for series in history if series["metric"]["instance"] == HOST)
    assert worst >= 3


async def alertmanager(fleet: Fleet, daemon: Daemon) -> None:
    """It gets firing alerts again: the link that goes down now is an alert in it."""
    async with fleet.killed(daemon):
        pass
    port = fleet.stage.lab.host("h2").nic(DEVICE).switch_port
    fault = await asyncio.to_thread(port.down)
    try:
        await fleet.wait_for(
            "FabricNicDisconnected in the new Alertmanager",
            lambda: any(
                a.name == "FabricNicDisconnected" and a.instance == "h2" for a in fleet.seen.notified
            ),
        )
        await fleet.ring_goes_on()
    finally:
        await asyncio.to_thread(fault.undo)
