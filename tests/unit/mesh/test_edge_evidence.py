"""Evidence of edges: what one host sees, never more than it can know."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.mesh.edge_evidence import EdgeView, Evidence, evidence_of
from fabricpulse.mesh.snapshot import HealthState

UP, DOWN, UNKNOWN = HealthState.UP, HealthState.DOWN, HealthState.UNKNOWN


def edge(device, peer, peer_device, state=UP, inbound=None, nic=UP, dead_paths=0):
    inbound = (UP if state == UP else DOWN) if inbound is None else inbound
    outbound = UNKNOWN if inbound != UP else state
    return EdgeView(device, peer, peer_device, state, inbound, outbound, nic, dead_paths)


def test_own_nic():
    """Edges of a NIC that receives nothing speak of that NIC; those of the next rail of none."""
    evidence = evidence_of(
        [edge("r0", "a", "r0", DOWN, nic=DOWN), edge("r0", "b", "r0", DOWN, nic=DOWN), edge("r1", "a", "r1")]
    )
    assert evidence == ["own_nic_disconnected", "own_nic_disconnected", None]


def test_what_other_edges_to_the_same_host_add():
    """No NIC of several, this NIC alone, or this pair alone."""
    assert evidence_of([edge("r0", "a", "r0", DOWN), edge("r1", "a", "r1", DOWN), edge("r0", "b", "r0")]) == [
        "peer_host_silent",
        "peer_host_silent",
        None,
    ]
    own, _, _ = evidence_of([edge("r0", "a", "r0", DOWN), edge("r1", "a", "r1"), edge("r0", "b", "r0")])
    assert own == "peer_nic_silent"
    own, _, _ = evidence_of([edge("r0", "a", "r0", DOWN), edge("r1", "a", "r0"), edge("r0", "b", "r0")])
    assert own == "pair_silent"


@given(st.integers(1, 4), st.integers(0, 6))
def test_edges_to_one_nic_of_a_peer_blame_nothing(edges_to_it, others):
    """Whatever is broken, one NIC of a peer is all that is seen of it: its host is not called silent."""
    views = [edge(f"r{i}", "a", "r0", DOWN) for i in range(edges_to_it)]
    views += [edge("r0", f"b{i}", "r0") for i in range(others)]
    assert evidence_of(views)[:edges_to_it] == ["peer_silent"] * edges_to_it


def test_direction_and_path():
    """An edge that receives and is not received, and one of whose paths some are dead."""
    assert (
        evidence_of([edge("r0", "a", "r0", DOWN, inbound=UP), edge("r0", "b", "r0")])[0]
        == "peer_receives_nothing"
    )
    assert evidence_of([edge("r0", "a", "r0", dead_paths=2)]) == ["paths_down"]


def test_two_failures_at_once_are_distinguished():
    """Our rail 0 and the whole of host b fail together."""
    evidence = evidence_of(
        [
            edge("r0", "a", "r0", DOWN, nic=DOWN),
            edge("r0", "b", "r0", DOWN, nic=DOWN),
            edge("r1", "a", "r1"),
            edge("r1", "b", "r1", DOWN),
        ]
    )
    assert evidence == ["own_nic_disconnected", "own_nic_disconnected", None, "peer_silent"]


states = st.sampled_from([UP, DOWN, UNKNOWN])
edges = st.lists(
    st.builds(
        EdgeView,
        st.sampled_from(["r0", "r1"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["r0", "r1"]),
        states,
        states,
        states,
        states,
        st.integers(0, 2),
    ),
    max_size=12,
)


@given(edges)
def test_what_is_not_measured_is_no_evidence(views):
    """An unknown edge has no evidence; a working one has at most dead paths; a dead one always has a name."""
    for view, evidence in zip(views, evidence_of(views), strict=True):
        if view.state == UNKNOWN:
            assert evidence is None
        elif view.state == UP:
            assert evidence in (None, "paths_down")
        else:
            assert evidence in set(get_args(Evidence)) - {"paths_down"}
        if evidence not in (None, "own_nic_disconnected", "paths_down"):
            assert view.nic_state == UP
