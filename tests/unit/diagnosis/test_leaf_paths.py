"""Leaves with fewer next hops than their siblings: which, how many, since when, and when that is not known."""

import numpy as np
import pytest
from tests.unit.diagnosis.virtual_fleet import VirtualFleet

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.diagnosis.daemon.leaf_paths_api import expose_leaf_paths, leaf_paths_document
from fabricpulse.diagnosis.flows.flow_table import FlowTable
from fabricpulse.diagnosis.leaf_paths import history as leaf_history
from fabricpulse.diagnosis.leaf_paths.found import MOST_LEAVES, FewerPaths, LeafPaths, State
from fabricpulse.diagnosis.leaf_paths.history import LeafHistory, Seen
from fabricpulse.diagnosis.leaf_paths.next_hops import NextHops, next_hops
from fabricpulse.diagnosis.leaf_paths.siblings import LeafState, compared

SPINE = 1000  # node of the first one
EACH = 40  # flows over a next hop
PORTS = 4


def hops_of(addresses_only: bool = False, /, **leaves: dict[int, int]) -> NextHops:
    """leaves : of l3, the leaf of node 3, by next hop the flows; -1 for one that does not answer. Each flow is one of
    four ports of a pair. addresses_only : all ports of a pair have one next hop.
    """
    rows = [
        (int(name[1:]), hop + SPINE if hop >= 0 else -1, flows, flows // PORTS if addresses_only else flows)
        for name, hops in leaves.items()
        for hop, flows in sorted(hops.items())
    ]
    leaf, hop, flows, ways = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    pairs = {
        int(node): max(1, int(flows[(leaf == node) & (hop >= 0)].sum()) // PORTS) for node in np.unique(leaf)
    }
    return NextHops(
        *(leaf.astype(np.int32), hop.astype(np.int32), flows, ways, (leaf + 100).astype(np.int32), pairs)
    )


def of(spines: range | list[int], ways: int = EACH) -> dict[int, int]:
    """The same number of flows over each of these spines."""
    return dict.fromkeys(spines, ways)


def states(found: NextHops, network: str = "") -> dict[int, LeafState]:
    """By node of the leaf."""
    return {state.leaf: state for state in compared(found, lambda _: network)}


def test_a_leaf_that_lacks_an_uplink() -> None:
    """Named with the spine that it lacks; the others are whole."""
    found = states(hops_of(l0=of(range(4)), l1=of([0, 1, 3]), l2=of(range(4)), l3=of(range(4))))
    assert {leaf: state.state for leaf, state in found.items()} == {
        0: State.WHOLE,
        1: State.FEWER,
        2: State.WHOLE,
        3: State.WHOLE,
    }
    assert (found[1].expected, found[1].siblings, found[1].missing) == (4, 3, (SPINE + 2,))


@pytest.mark.parametrize(
    ("flows", "addresses_only", "state"),
    [
        (3, False, State.UNKNOWN),
        (9, False, State.UNKNOWN),
        (18, False, State.FEWER),
        (18, True, State.UNKNOWN),
        (72, True, State.FEWER),
    ],
)
def test_a_leaf_with_few_traced_paths_is_unknown(flows: int, addresses_only: bool, state: State) -> None:
    """Of a next hop that is live none may have been traced, by chance. Where switches hash addresses only, the ports of
    a pair say nothing more than one of them.
    """
    whole = of(range(4))
    found = states(hops_of(addresses_only, l0=whole, l1=of([0, 1, 3], flows), l2=whole, l3=whole))
    assert found[1].state is state


def test_a_next_hop_that_few_flows_take_is_not_missing_elsewhere() -> None:
    """Routes of unequal weight: a leaf where the seldom one does not show is unknown, not lacking."""
    uneven = {0: 100, 1: 100, 2: 4}
    found = states(hops_of(l0=uneven, l1={0: 90, 1: 110}, l2=uneven, l3=uneven))
    assert found[1].state is State.UNKNOWN


def test_a_next_hop_that_does_not_answer_is_no_missing_one() -> None:
    """A spine that is silent to some: as many flows lead over a next hop without a name."""
    found = states(hops_of(l0=of(range(4)), l1={**of([0, 1, 3]), -1: EACH}, l2=of(range(4)), l3=of(range(4))))
    assert found[1].state is State.UNKNOWN
    # One trace of hundreds that stayed without an answer hides no uplink.
    found = states(hops_of(l0=of(range(4)), l1={**of([0, 1, 3]), -1: 1}, l2=of(range(4)), l3=of(range(4))))
    assert found[1].state is State.FEWER


def test_siblings_of_which_no_next_hop_is_known_make_no_leaf_whole() -> None:
    """With one that has two."""
    nodes = np.arange(5, dtype=np.int32)
    leaf, hop = np.concatenate([nodes[:1], nodes]), np.array([10, 11, -1, -1, -1, -1], np.int32)
    flows = np.full(6, 100)
    found = NextHops(leaf, hop, flows, flows, leaf + 20, {0: 50})
    assert {one.state for one in compared(found, lambda _: "rail0")} == {State.UNKNOWN}


def test_pods_have_uplinks_of_their_own() -> None:
    """Leaves of a pod with two spines are not those of one with four; two leaves have no two siblings each."""
    pods = {f"l{n}": of(range(4)) for n in range(4)} | {f"l{n}": of([4, 5]) for n in range(4, 7)}
    pair = {f"l{n}": of([6, 7, 8][: n - 5]) for n in (7, 8)}
    found = states(hops_of(**pods, **pair), "rail0")
    assert {found[n].state for n in range(7)} == {State.WHOLE}
    assert {found[n].state for n in (7, 8)} == {State.UNKNOWN}


def test_striped_uplinks_are_no_missing_ones() -> None:
    """Each leaf is cabled to two of three spines: most leaves have each, no leaf has fewer."""
    found = states(hops_of(l0=of([0, 1]), l1=of([1, 2]), l2=of([0, 2]), l3=of([0, 1])))
    assert {state.state for state in found.values()} == {State.WHOLE}


def test_spines_with_another_address_for_each_leaf() -> None:
    """No next hop is shared: leaves of one network are compared by number; without a network they are unknown."""
    own = {f"l{n}": of(range(10 * n, 10 * n + 4 - (n == 2))) for n in range(5)}
    found = states(hops_of(**own), "rail0")
    assert found[2].state is State.FEWER and found[2].missing == ()
    assert {found[n].state for n in (0, 1, 3, 4)} == {State.WHOLE}
    assert {state.state for state in states(hops_of(**own)).values()} == {State.UNKNOWN}


def test_next_hops_are_those_of_traced_flows() -> None:
    """Not those within a leaf, nor those on which nothing is sent."""
    # Nodes 0 to 3 are NICs, switches follow from 4 on: leaf 4, spines 5 and 6, and 7, which does not answer.
    source, destination = np.array([0, 0, 1, 1], np.int32), np.array([2, 1, 2, 3], np.int32)
    rate = np.array([90, 90, 90, 0], np.float32)
    hops = np.full((16, 3), -2, np.int16)
    hops[:, 0] = 0
    hops[0:4, 1] = [1, 1, 2, 3]  # ports of the first pair
    hops[8:12, 1] = [1, 3, 3, 3]
    hops[12:16, 1] = 2
    table = FlowTable(
        source,
        destination,
        np.full(8, -1, np.int32),
        *(rate, rate, np.arange(0, 17, 4), hops),
        first_switch=4,
        first_unnamed=7,
    )
    found = next_hops(table)
    columns = found.leaf, found.hop, found.flows, found.ways, found.nic
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows == [(4, -1, 4, 2, 0), (4, 5, 3, 2, 0), (4, 6, 1, 1, 0)]
    assert found.pairs == {4: 2}


def seen(state: State, hops: str, leaf: str = "leaf1", missing: tuple[str, ...] = ()) -> Seen:
    """Of four next hops."""
    return Seen(leaf, "rail0", state, frozenset(hops), 4, 3, missing)


def test_since_when() -> None:
    """From when it last was whole, through a time in which it is unknown; until it is whole again."""
    history = LeafHistory()
    history.update([seen(State.WHOLE, "abcd")], 100.0)
    history.update([seen(State.WHOLE, "abcd")], 160.0)
    (one,) = history.update([seen(State.FEWER, "abd", missing=("c",))], 220.0).leaves
    assert (one.live, one.expected, one.missing, one.since_s) == (3, 4, ("c",), 160.0)
    assert history.update([seen(State.UNKNOWN, "a")], 230.0) == LeafPaths(unknown=1)
    (one,) = history.update([seen(State.FEWER, "abd")], 300.0).leaves
    # Its siblings give no name to it: its own past does.
    assert (one.missing, one.since_s) == (("c",), 160.0)
    assert history.update([seen(State.WHOLE, "abcd")], 310.0) == LeafPaths(whole=1)


def test_never_seen_is_another_thing_than_unknown() -> None:
    """What lacked it from the first time that enough was known has no beginning, but a time since it is watched."""
    history = LeafHistory()
    assert not history.update([seen(State.UNKNOWN, "a")], 10.0).leaves
    for now_s in (50.0, 90.0):
        (one,) = history.update([seen(State.FEWER, "abd")], now_s).leaves
        assert (one.since_s, one.watched_s) == (None, 50.0)
    # A day later nothing is known of a leaf that was gone.
    history.update([], 90_000.0)
    (one,) = history.update([seen(State.FEWER, "abd")], 90_001.0).leaves
    assert one.watched_s == 90_001.0


def test_of_no_path_there_is_no_leaf() -> None:
    """As long as hosts have reported delays alone."""
    none = np.array([], np.int64)
    nodes = none.astype(np.int32)
    assert states(NextHops(nodes, nodes, none, none, nodes, {})) == {}


def test_what_is_reported_is_bounded() -> None:
    """The most affected first; all are counted."""
    leaves = [seen(State.FEWER, "abd", f"leaf{n}") for n in range(500)] + [seen(State.FEWER, "a", "worst")]
    found = LeafHistory().update(leaves, 1.0)
    assert (found.fewer, len(found.leaves), found.leaves[0].leaf) == (501, MOST_LEAVES, "worst")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were seen last are kept."""
    monkeypatch.setattr(leaf_history, "_MOST", 10)
    remembered = LeafHistory()
    for now_s in range(5):
        remembered.update([seen(State.WHOLE, "abcd", f"leaf{now_s}-{n}") for n in range(6)], float(now_s))
    (one,) = remembered.update([seen(State.FEWER, "abd", "leaf4-0")], 9.0).leaves
    assert (one.since_s, len(remembered._leaves)) == (4.0, 10)


def test_a_fleet_whose_leaf_loses_an_uplink() -> None:
    """From the reports of the exporters: known soon after they have traced their paths again, with the moment before;
    over as the uplink is back.
    """
    fleet = VirtualFleet(3, 12, 1, 4, 3)
    fleet.play(8)
    assert fleet.evidence.leaf_paths(fleet.now_s) == LeafPaths(whole=4)
    fleet.withdraw("leaf1-r0", "spine2-r0")
    fleet.play(14)
    found = fleet.evidence.leaf_paths(fleet.now_s)
    (leaf,) = found.leaves
    assert (found.whole, found.fewer, leaf.leaf, leaf.live, leaf.missing) == (
        3,
        1,
        "leaf1-r0",
        2,
        ("spine2-r0",),
    )
    assert leaf.since_s is not None and 0 <= leaf.since_s - 8.0 <= 8.0
    fleet.withdraw("leaf1-r0")
    fleet.play(14)
    assert fleet.evidence.leaf_paths(fleet.now_s) == LeafPaths(whole=4)


def test_a_fleet_that_traces_nothing_is_unknown() -> None:
    """The declared leaves are known, not how many spines there are."""
    fleet = VirtualFleet(3, 9, 1, 3, 3, traced=False)
    fleet.play(8)
    assert fleet.evidence.leaf_paths(fleet.now_s).leaves == ()
    assert fleet.evidence.leaf_paths(fleet.now_s).whole == 0


def test_json_and_metrics_give_moments_in_utc() -> None:
    """Monotonic seconds of the worker become UTC; without a beginning there is no series of it."""
    lost = FewerPaths("leaf1", "rail0", 2, 4, 7, ("spine2", "spine3"), 940.0, 100.0)
    never = FewerPaths("leaf2", "rail0", 3, 4, 7, (), None, 700.0)
    found = LeafPaths(6, 2, 1, (lost, never))
    document = leaf_paths_document(found, 1000.0, 1_767_225_660 * 10**9)  # 2026-01-01T00:01:00Z
    assert {name: document[name] for name in ("whole", "fewer", "unknown")} == {
        "whole": 6,
        "fewer": 2,
        "unknown": 1,
    }
    first, second = document["leaves"]
    assert first["since"] == "2026-01-01T00:00:00Z" and second["since"] is None
    assert second["watched_since"] == "2025-12-31T23:56:00Z"
    out = Exposition(100)
    expose_leaf_paths(out, found, 1000.0, 1_767_225_660.0)
    lines = {
        line for line in out.render(TextFormat.PLAIN).decode().splitlines() if "fabricpulse_lea" in line[:16]
    }
    of = 'leaf="leaf1",network="rail0"'
    assert lines == {
        'fabricpulse_leaves{paths="whole"} 6',
        'fabricpulse_leaves{paths="fewer"} 2',
        'fabricpulse_leaves{paths="unknown"} 1',
        f"fabricpulse_leaf_paths_missing{{{of}}} 2",
        'fabricpulse_leaf_paths_missing{leaf="leaf2",network="rail0"} 1',
        f"fabricpulse_leaf_paths_missing_since_timestamp_seconds{{{of}}} 1767225600",
    }
