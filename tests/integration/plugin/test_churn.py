"""Connections that are made and ended over and over, in odd ways (tests/native/hosts/churn.cc)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.chaos import play
from tests.integration.plugin.ring import Rank

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rails=2, nic_mbit=1000) as started:
        yield started


def start(lab: Lab, folder: Path, seed: int, channels: int, lives: int, variant: str = "plain") -> list[Rank]:
    """Both processes of the host program. variant : how they are built, see native()."""
    program, plugin = (native(name, variant) for name in ("plugin_churn_host", "nccl-net-fabricpulse"))
    ranks = []
    for number in range(2):
        host, output = lab.host(number), folder / f"rank{number}.out"
        arguments = [number, folder / "control", seed, channels, lives]
        with output.open("wb") as stream:
            process = host.popen(
                [str(program), str(plugin), *map(str, arguments)],
                env={
                    "FABRICPULSE_NICS": "rail*",
                    "FABRICPULSE_HOST": host.name,
                    "ASAN_OPTIONS": "detect_leaks=0",  # as NCCL, it frees nothing that a killed peer leaves
                },
                stdout=stream,
                stderr=stream,
            )
        ranks.append(Rank(host.name, process, output))
        if number == 0:
            wait_for((folder / "control").exists, 20, "the first has its plugin")
    wait_for(lambda: not (folder / "control").exists(), 20, "the second has its plugin, and both have met")
    return ranks


def finish(ranks: list[Rank], story: list[str], seconds: float) -> list[dict[str, int]]:
    """What both have counted. Fails with what they said, and the faults, when one does not end well."""
    try:
        codes = [rank.process.wait(seconds) for rank in ranks]
    finally:
        for rank in ranks:
            rank.process.kill()
    assert codes == [0, 0], [*(rank.text() for rank in ranks), *story]
    return [json.loads(rank.output.read_text().splitlines()[-1]) for rank in ranks]


def test_connections_end_in_every_way(lab: Lab, tmp_path: Path) -> None:
    """Closed in order or with requests under way by either end or both, memory taken back, a listener that is gone, a
    connection that is given up; requests tested in any order, memory registered twice, tags used again, sizes from 0:
    each message as it was sent, no byte behind it or too late, no error that an end has not caused, nothing left."""
    for counted in finish(start(lab, tmp_path, 1, 4, 15), [], 60):
        assert counted["connections"] > 40
        assert counted["messages"] > 400


@pytest.mark.slow
def test_all_connections_learn_of_a_killed_peer(lab: Lab, tmp_path: Path) -> None:
    """Six connections come and go when the other process is killed: each has an error soon, in ten seconds at the
    latest where its host has said nothing but resets, as a firewall would; every call comes to an end."""
    ranks = start(lab, tmp_path, 3, 6, 500)
    time.sleep(1.0)  # connections come and go; at which moment it ends is of no matter
    ranks[1].process.kill()
    assert ranks[0].process.wait(60) == 0, ranks[0].text()
    (counted,) = (
        json.loads(line) for line in ranks[0].output.read_text().splitlines() if line.startswith("{")
    )
    assert 0 < counted["gone_ms"] < 15_000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("whole_rail", "variant"), [(None, "plain"), (1, "plain"), (None, "thread"), (None, "optimized_address")]
)
def test_the_same_under_random_faults(lab: Lab, tmp_path: Path, whole_rail: int | None, variant: str) -> None:
    """With links that fail, processes that are stopped, children that are forked meanwhile; with sanitizers, too."""
    ranks = start(lab, tmp_path, 2, 4, 40, variant)
    story = play(
        ranks,
        lab,
        3,
        60,
        whole_rail=whole_rail,
        going=lambda: all(rank.process.poll() is None for rank in ranks),
    )
    for counted in finish(ranks, story, 200):
        assert counted["connections"] > 100
