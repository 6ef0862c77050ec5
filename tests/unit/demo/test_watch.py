"""Readings of the demo: what cannot be read any more is not known."""

import asyncio

import aiohttp
import pytest
from tests.fixtures.waiting import until

from fabricpulse.lab.demo import watch as module
from fabricpulse.lab.demo.observed import Observed, new_observed
from fabricpulse.lab.demo.watch import MeshWatch, QpWatch

EXPOSITION = """fabricpulse_nic_connected{device="rail0"} 1
fabricpulse_nic_disconnects_total{device="rail0"} 0
fabricpulse_edge_up{device="rail0",peer="h1",peer_device="rail0"} 1
"""


class Exporter(MeshWatch):
    """A mesh exporter that a test kills."""

    dead = False

    async def get_text(self, path: str) -> str:
        if self.dead:
            raise OSError("no route to host")
        return EXPOSITION


def state(observed: Observed) -> tuple[str, int, int]:
    host = observed.hosts["h0"]
    return host.nics["rail0"].colour, host.edges_up, host.edges


async def test_a_host_that_does_not_answer_is_not_green(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed reading changes nothing; after KNOWN_S without one nothing is known; the next one is believed."""
    monkeypatch.setattr(module, "KNOWN_S", 2.0)
    observed = new_observed({"h0": ["rail0"]})
    observed.nic("h0", "rail0").in_service = True
    async with aiohttp.ClientSession() as session:
        watch = Exporter(session, "h0", "http://h0", 0.01)
        running = asyncio.create_task(watch.run(observed, asyncio.Event()))
        try:
            await until(lambda: state(observed) == ("green", 1, 1))
            watch.dead = True
            await until(lambda: watch.name in observed.read_errors)
            assert state(observed) == ("green", 1, 1)
            await until(lambda: state(observed) == ("gray", 0, 0))
            watch.dead = False
            await until(lambda: state(observed) == ("green", 1, 1))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_the_bandwidth_of_collectives_is_read_where_there_is_one() -> None:
    """A ring without the profiler has none: the page of the job would be empty."""
    name = "fabricpulse_collective_bandwidth_bytes_per_second"
    text = f'{name}{{workload="demo-ring",collective="AllReduce"}} 4e+07\n'

    class Qp(QpWatch):
        async def get_text(self, path: str) -> str:
            return text

    observed = new_observed({"h0": ["rail0"]})
    async with aiohttp.ClientSession() as session:
        watch = Qp(session, "h0", "http://h0", 1.0)
        await watch.poll(observed)
        assert observed.hosts["h0"].collective_bytes_per_s == 40e6
        text = ""
        await watch.poll(observed)
        assert observed.hosts["h0"].collective_bytes_per_s is None
