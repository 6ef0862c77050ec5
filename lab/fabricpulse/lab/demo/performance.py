"""One performance of the demo: lab, stack, workload, run, result; and everything gone again at the end."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp

from fabricpulse.lab import Lab
from fabricpulse.lab.demo.director import Director
from fabricpulse.lab.demo.lateness_watch import HeartbeatWatch, RunQueueWatch
from fabricpulse.lab.demo.names import ALERTMANAGER, DEMO, MESH, PROMETHEUS, QP, RECEIVER, SIDECAR
from fabricpulse.lab.demo.nic_faults import NicFaults
from fabricpulse.lab.demo.observed import Observed, new_observed
from fabricpulse.lab.demo.on_call import OnCall
from fabricpulse.lab.demo.result import Result
from fabricpulse.lab.demo.scenario_run import Event, ScenarioRun
from fabricpulse.lab.demo.scenarios import SCENARIOS
from fabricpulse.lab.demo.scenarios.base import Fleet, Setting
from fabricpulse.lab.demo.stack import Stack, StackOptions, require_free_ports
from fabricpulse.lab.demo.watch import (
    AlertmanagerWatch,
    ClockWatch,
    FleetTruth,
    MeshWatch,
    PluginWatch,
    PrometheusWatch,
    QpWatch,
    RemediationWatch,
    Watch,
)
from fabricpulse.lab.demo.workload import Workload
from fabricpulse.lab.tools import Tools

# Every NIC of the demo has this speed, so that the ring is held back by the network and not by the two cores that it
# shares with forty daemons. Two rails give half of the bandwidth each, which makes a lost one visible.
NIC_MBIT = 125.0

PLAIN = Setting()

# How often at most what evaluates each second is asked: more often would show nothing, and takes time from the same
# cores.
ANSWER_S = 0.25

# The clocks of the hosts: seconds apart and drifting, worse than in a real fleet.
OFFSETS_S = (0.0, 3.7, -12.25, 1.5, -0.8, 42.0)
DRIFTS_PPM = (0.0, 48.0, -50.0, 21.0, -33.0, 12.0)


class Screen(Protocol):
    """Where a performance is shown."""

    def begin(self, observed: Observed, run: ScenarioRun, urls: list[tuple[str, str]]) -> None:
        """The run begins."""

    def progress(self, text: str) -> None:
        """Something is being prepared."""

    def event(self, event: Event) -> None:
        """Something happened in the run."""

    def update(self, observed: Observed, now: float) -> None:
        """Something new has been observed."""

    def end(self, result: Result) -> None:
        """The run is over."""

    def staying(self, urls: list[tuple[str, str]]) -> None:
        """The lab stays up until interrupted."""


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    scenario: str
    hosts: int
    rails: int
    keep: bool
    json_file: Path | None
    tools: Tools
    port: int = 0


@dataclass(frozen=True)
class Staged:
    """Everything is up and healthy or about to be; nobody observes yet."""

    lab: Lab
    stack: Stack
    workload: Workload
    fleet: Fleet
    observed: Observed
    watches: list[Watch]


async def perform(options: Options, screen: Screen, finished: Callable[[Result], None]) -> None:
    """Plays the scenario and takes the lab down again. Raises UserError.

    finished : called with the result as soon as the run is over, which with `keep` is long before the lab is gone.
    """
    size = (options.hosts, options.rails)
    played = SCENARIOS[options.scenario]
    setting = played.setting
    stack = StackOptions(
        options.tools,
        options.port,
        diagnosis=played.diagnosis,
        leaves=setting.leaves,
        rules=setting.rules,
        repaths=setting.repaths,
    )
    async with staged(size, stack, screen.progress, setting) as stage:
        scenario = played(stage.fleet)
        faults = NicFaults(stage.lab)
        director = Director(scenario, stage.observed, stage.watches, faults, screen.event, screen.update)
        screen.begin(stage.observed, director.run, stage.stack.urls())
        result = await director.play()
        finished(result)
        if options.json_file is not None:
            options.json_file.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
        screen.end(result)
        for daemon in stage.stack.ended():
            screen.progress(f"{daemon.label} had ended with {daemon.ended}: {daemon.last_words()}")
        if options.keep:
            screen.staying(stage.stack.urls())
            await asyncio.Event().wait()


@asynccontextmanager
async def staged(
    size: tuple[int, int], options: StackOptions, progress: Callable[[str], None], setting: Setting = PLAIN
) -> AsyncIterator[Staged]:
    """A lab of (hosts, rails) with the whole stack and the ring running; all of it gone again at the end.

    Raises UserError.
    """
    hosts, rails = size
    require_free_ports(options.port)
    progress(f"building the lab: {hosts} hosts with {rails} rails")
    lab = Lab(
        hosts,
        rails,
        spines=setting.spines,
        pods=setting.pods,
        nic_mbit=NIC_MBIT,
        uplink_mbit=setting.uplink_mbit,
    )
    try:
        await asyncio.to_thread(lab.start)
        set_clocks(lab)
        on_call = OnCall(lab)
        stack = Stack(lab, options)
        workload = Workload(lab, NIC_MBIT, setting.job)
        fleet = Fleet(lab.fabric.host_names, lab.fabric.rail_names, lab.fabric.leaf_names)
        observed = new_observed(dict.fromkeys(fleet.hosts, fleet.devices))
        # Pages that are read many times a second are not compressed: that would cost both sides more than it saves.
        async with aiohttp.ClientSession(headers={"Accept-Encoding": "identity"}) as session:
            await stack.start(session, progress)
            progress(f"starting the {setting.job.name} over {len(fleet.hosts)} hosts")
            await workload.start()
            yield Staged(
                lab,
                stack,
                workload,
                fleet,
                observed,
                [
                    *_watches(lab, stack, session, setting.poll_s),
                    *_lateness_watches(lab, stack, workload, setting.poll_s / 2),
                    workload,
                    on_call,
                ],
            )
    finally:
        await asyncio.shield(asyncio.to_thread(lab.close))


def set_clocks(lab: Lab) -> None:
    """Gives each host a clock that is seconds off, drifts and wanders."""
    for index, host in enumerate(lab.hosts):
        offset_s = OFFSETS_S[index % len(OFFSETS_S)]
        drift_ppm = DRIFTS_PPM[index % len(DRIFTS_PPM)]
        host.clock.set(offset_ns=round(offset_s * 1e9), drift_ppm=drift_ppm, wander_ppb=10.0, seed=index)


def _watches(lab: Lab, stack: Stack, session: aiohttp.ClientSession, poll_s: float) -> list[Watch]:
    answer_s = max(ANSWER_S, poll_s / 2)
    truth = FleetTruth({host.name: (host.run_dir / "clock", host.clock.path) for host in lab.hosts})
    watches: list[Watch] = [
        PrometheusWatch(session, "Prometheus", stack.daemon(PROMETHEUS).url, answer_s),
        AlertmanagerWatch(session, "Alertmanager", stack.daemon(ALERTMANAGER).url, answer_s),
        RemediationWatch(session, "remediation receiver", stack.daemon(RECEIVER).url, answer_s),
    ]
    for host in lab.fabric.host_names:
        watches += [
            MeshWatch(session, host, stack.daemon(MESH, host).url, poll_s),
            QpWatch(session, host, stack.daemon(QP, host).url, 1.0),
            ClockWatch(session, host, stack.daemon(SIDECAR, host).url, 1.0, truth),
            PluginWatch(host, lab.host(host).run_dir / "plugin", answer_s),
        ]
    return watches


def _lateness_watches(lab: Lab, stack: Stack, workload: Workload, poll_s: float) -> list[Watch]:
    """The processes that the figures depend on closely, the others now and then."""
    beat = lab.mgmt.popen([sys.executable, "-P", "-m", "fabricpulse.lab.heartbeat"], name="heartbeat")
    others = {daemon.name for daemon in stack.daemons} - {MESH}
    return [
        RunQueueWatch(
            "waits for a CPU",
            lambda: {**workload.pids(), **stack.pids(MESH), DEMO: os.getpid()},
            poll_s,
        ),
        RunQueueWatch("waits for a CPU of the others", lambda: stack.pids(*others), 1.0),
        HeartbeatWatch(beat),
    ]
