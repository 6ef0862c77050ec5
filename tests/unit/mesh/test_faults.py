"""Dead edges told as what they are."""

from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.mesh.faults import EdgeView, diagnose
from fabricpulse.mesh.snapshot import State

UP, DOWN, UNKNOWN = State.UP, State.DOWN, State.UNKNOWN


def edge(device, peer, peer_device, state=UP, inbound=None, nic=UP, dead_paths=0):
    inbound = (UP if state == UP else DOWN) if inbound is None else inbound
    outbound = UNKNOWN if inbound != UP else state
    return EdgeView(device, peer, peer_device, state, inbound, outbound, nic, dead_paths)


def test_own_nic():
    faults = diagnose(
        [edge("r0", "a", "r0", DOWN, nic=DOWN), edge("r0", "b", "r0", DOWN, nic=DOWN), edge("r1", "a", "r1")]
    )
    assert faults == ["local_nic", "local_nic", None]


def test_peer_host_peer_nic_pair():
    assert diagnose([edge("r0", "a", "r0", DOWN), edge("r1", "a", "r1", DOWN), edge("r0", "b", "r0")]) == [
        "peer_host",
        "peer_host",
        None,
    ]
    assert (
        diagnose([edge("r0", "a", "r0", DOWN), edge("r1", "a", "r1"), edge("r0", "b", "r0")])[0] == "peer_nic"
    )
    assert diagnose([edge("r0", "a", "r0", DOWN), edge("r1", "a", "r0"), edge("r0", "b", "r0")])[0] == "pair"


def test_direction_and_path():
    assert diagnose([edge("r0", "a", "r0", DOWN, inbound=UP), edge("r0", "b", "r0")])[0] == "outbound"
    assert diagnose([edge("r0", "a", "r0", dead_paths=2)]) == ["path"]


def test_two_failures_at_once_are_told_apart():
    """Our rail 0 and the whole of host b fail together."""
    faults = diagnose(
        [
            edge("r0", "a", "r0", DOWN, nic=DOWN),
            edge("r0", "b", "r0", DOWN, nic=DOWN),
            edge("r1", "a", "r1"),
            edge("r1", "b", "r1", DOWN),
        ]
    )
    assert faults == ["local_nic", "local_nic", None, "peer_host"]


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
def test_what_is_not_measured_is_no_fault(views):
    """An unknown edge has no fault; a working one has at most a dead path; a dead one always has a name."""
    for view, fault in zip(views, diagnose(views), strict=True):
        if view.state == UNKNOWN:
            assert fault is None
        elif view.state == UP:
            assert fault in (None, "path")
        else:
            assert fault in ("local_nic", "peer_host", "peer_nic", "outbound", "pair")
        if fault not in (None, "local_nic", "path"):
            assert view.nic_state == UP
