"""How soon lanes are back when a fault ends, and what looking for that costs (tests/native/plugin/lane_return.cc): the
plugin's connections and handshakes at both ends, in virtual time."""

import json
import subprocess

import pytest
from tests.fixtures.native.programs import native

pytestmark = pytest.mark.build


def play(
    lanes: str, spares: int, fault: str, rails: int, outage_ms: int, heals: int, connections: int
) -> dict[str, float]:
    """The worst of `heals` faults, each of which ends at another moment of what the connections do meanwhile."""
    words = map(str, (lanes, spares, fault, rails, outage_ms, heals, connections))
    done = subprocess.run(
        [str(native("plugin_lane_return")), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("chosen", "primary", "least_ms", "most_ms"),
    [("100", 1, 100, 290), ("9999", 0, 300, 302), ("down", 0, 0, 1)],
)
def test_connect_waits_for_the_chosen_lane_once_there_is_another(
    chosen: str, primary: int, least_ms: int, most_ms: int
) -> None:
    """300 ms, however long the peer was away before: that long counted as waiting for it, so that a job began on
    whichever lane was there a moment earlier. Nothing is waited for if the chosen NIC's own link is down."""
    done = subprocess.run(
        [str(native("plugin_lane_return")), "connect", chosen],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["primary"] == primary
    assert least_ms <= found["ready_ms"] <= most_ms


@pytest.mark.parametrize("lanes", ["tcp", "verbs"])
def test_the_end_of_a_total_outage_is_seen_soon(lanes: str) -> None:
    """Both rails drop everything for seconds: dials are made anew each 150 ms and 150 ms apart, and never do all lanes
    of a connection wait longer for an answer at the same time. They did: 936 ms."""
    found = play(lanes, 0, "all", 2, 3000, 30, 1)
    assert found["first_ms"] <= 320
    assert found["gap_ms"] <= 320
    assert found["all_ms"] <= 1050


@pytest.mark.parametrize(("spares", "rails"), [(1, 2), (0, 1)])
@pytest.mark.parametrize("outage_ms", [3000, 20_000])
def test_queue_pairs_that_pass_something_again_are_used_soon(spares: int, rails: int, outage_ms: int) -> None:
    """RoCE is dropped on both rails and TCP carries the job, or on one and the other carries it; TCP passes, so lanes
    come up all the time. It took 3.2 to 4.7 s until one was tried that worked."""
    assert play("verbs", spares, "rdma", rails, outage_ms, 16, 1)["first_ms"] <= 650


def test_a_path_on_which_queue_pairs_pass_nothing_is_tried_by_one_lane() -> None:
    """However many connections there are: two tries a second of each of two paths. Each costs a queue pair at both
    hosts, and together they tried 14 to 19 times a second."""
    found = play("verbs", 1, "rdma", 2, 5000, 4, 8)
    assert found["dials_per_s"] <= 5
    assert found["first_ms"] <= 650


def test_a_lane_that_always_fails_leaves_the_others_their_turn() -> None:
    """The queue pairs of one connection stay dead, those of seven others over the same paths do not: the lane that has
    waited longest is tried next."""
    assert play("verbs", 1, "rdma-but-one", 2, 5000, 8, 8)["first_ms"] <= 2000
