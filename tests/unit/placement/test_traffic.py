"""Traffic of a shape: its groups, and bytes by the formulas of rings, all-to-all and pipelines."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.placement.shape import KINDS, ORDERS, Shape
from fabricpulse.placement.traffic import Model, Traffic, shape_traffic, traffic_of

shapes = st.builds(
    lambda tensor, pipeline, outer, expert, order: Shape(tensor, pipeline, outer * expert, expert, order),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(ORDERS),
)
NOTHING = dict.fromkeys(KINDS, 0.0)


def pairs(traffic: Traffic) -> dict[tuple[int, int], float]:
    ends = zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)
    return dict(zip(ends, traffic.size.tolist(), strict=True))


def test_groups_of_megatron() -> None:
    """The example of Megatron-LM's parallel_state for 16 ranks with tensor 2 and pipeline 4: the same groups."""
    shape = Shape(tensor=2, pipeline=4, data=2)

    assert shape.groups("tensor").tolist() == [[n, n + 1] for n in range(0, 16, 2)]
    assert sorted(shape.groups("pipeline").tolist()) == [[n, n + 4, n + 8, n + 12] for n in range(4)]
    assert sorted(shape.groups("data").tolist()) == [
        [n + k, n + k + 2] for n in range(0, 16, 4) for k in (0, 1)
    ]


def test_the_other_order() -> None:
    """tp-pp-dp: pipelines are neighbours, data ranks are far."""
    shape = Shape(tensor=2, pipeline=2, data=4, expert=2, order="tp-pp-dp")

    assert sorted(shape.groups("pipeline").tolist())[0] == [0, 2]
    assert shape.groups("data").tolist()[0] == [0, 4, 8, 12]
    assert shape.groups("expert").tolist()[0] == [0, 4]
    assert shape.groups("expert-data").tolist()[0] == [0, 8]


@given(shapes)
def test_groups_cover_all_ranks_once(shape: Shape) -> None:
    """Of each kind: every rank is in one group, all are of the same size."""
    for kind in KINDS:
        groups = shape.groups(kind)
        assert sorted(groups.ravel().tolist()) == list(range(shape.ranks))
        assert np.all(np.diff(groups, axis=1) > 0)
    assert shape.groups("expert").shape[1] * shape.groups("expert-data").shape[1] == shape.data


@given(shapes, st.sampled_from(KINDS), st.floats(1e3, 1e12))
def test_bytes_of_a_rank(shape: Shape, kind: str, payload: float) -> None:
    """What each rank sends by the formula of its kind, and only within its groups."""
    traffic = shape_traffic(shape, NOTHING | {kind: payload})
    groups = shape.groups(kind)
    count = groups.shape[1]
    factor = {"expert": (count - 1) / count, "pipeline": 2 * (count - 1) / count}.get(
        kind, 2 * (count - 1) / count
    )
    assert traffic.total() == pytest.approx(shape.ranks * factor * payload)
    group_of = {rank: row for row, group in enumerate(groups.tolist()) for rank in group}
    assert all(group_of[a] == group_of[b] for a, b in pairs(traffic))


def test_a_ring_a_pipeline_an_all_to_all() -> None:
    """Four ranks: who sends how much to whom."""
    ring = shape_traffic(Shape(data=4), NOTHING | {"data": 100.0})
    assert pairs(ring) == {(0, 1): 150.0, (1, 2): 150.0, (2, 3): 150.0, (3, 0): 150.0}
    line = shape_traffic(Shape(pipeline=3), NOTHING | {"pipeline": 7.0})
    assert pairs(line) == {(0, 1): 7.0, (1, 0): 7.0, (1, 2): 7.0, (2, 1): 7.0}
    mesh = shape_traffic(Shape(data=4, expert=4), NOTHING | {"expert": 100.0})
    assert set(pairs(mesh).values()) == {25.0}
    assert len(pairs(mesh)) == 12
    # Of two the next is also the one before: both ways of the ring are between the same two.
    assert pairs(shape_traffic(Shape(data=2), NOTHING | {"data": 100.0})) == {(0, 1): 100.0, (1, 0): 100.0}


def test_payloads_by_hand() -> None:
    """A small transformer: 2 sequences of 10 tokens, hidden 4, 2 bytes: 160 bytes of activations."""
    model = Model(
        parameters=1000,
        expert_parameters=800,
        layers=6,
        hidden=4,
        sequence=10,
        micro_batch=2,
        micro_batches=3,
        top_k=2,
    )
    assert model.payloads(Shape(tensor=2, pipeline=2, data=4, expert=2)) == {
        "tensor": 4 * 160 * 3 * 3,
        "expert": 4 * 2 * 80 * 3 * 3,
        "data": 1000 * 4 / 4,
        "expert-data": 800 * 4 / 4 / 2,
        "pipeline": 80 * 3,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensor": 0},
        {"pipeline": -1},
        {"data": 6, "expert": 4},
        {"tensor": 10**6},
        {"tensor": 1000, "data": 1000},
        {"order": "dp-tp-pp"},
    ],
)
def test_shapes_that_cannot_be(wrong: dict[str, Any]) -> None:
    """One sentence, before anything of that size is made."""
    with pytest.raises(OptionError):
        Shape(**wrong)


def test_absurd_numbers_are_refused() -> None:
    """Of a model, and of a matrix: bytes below nothing, no numbers, ranks that do not exist."""
    wrong: dict[str, Any]
    for wrong in ({"layers": 0}, {"parameters": 1e30}, {"parameters": float("nan")}, {"top_k": -1}):
        with pytest.raises(OptionError):
            Model(**wrong)
    ends = np.array([0], dtype=np.int32), np.array([1], dtype=np.int32)
    for size in (-1.0, float("nan"), float("inf"), 1e30):
        with pytest.raises(UserError):
            traffic_of(2, *ends, np.array([size]))
    with pytest.raises(UserError):
        traffic_of(1, *ends, np.array([1.0]))
    with pytest.raises(UserError, match="at most"):
        shape_traffic(Shape(data=65536, expert=65536), NOTHING | {"expert": 1.0})


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 1e9)), max_size=30))
def test_pairs_are_added_up(listed: list[tuple[int, int, float]]) -> None:
    """Each pair is there once with all its bytes; what a rank sends itself is not."""
    columns = [np.array(column) for column in zip(*listed, strict=True)] if listed else [np.array([])] * 3
    traffic = traffic_of(
        6, columns[0].astype(np.int32), columns[1].astype(np.int32), columns[2].astype(float)
    )
    sums: dict[tuple[int, int], float] = defaultdict(float)
    for a, b, size in listed:
        if a != b and size > 0:
            sums[a, b] += size
    assert pairs(traffic) == pytest.approx(dict(sums))
