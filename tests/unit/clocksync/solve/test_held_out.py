"""What edges say that the solve has not seen."""

import numpy as np
import pytest
from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

from fabricpulse.clocksync.solve.graph_forms import FEW, graph_of
from fabricpulse.clocksync.solve.held_out import held_out

pytestmark = pytest.mark.simulation


def least_squares(n: int, i: np.ndarray, j: np.ndarray, m: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x with x_i - x_j close to m, by a general solver."""
    rows = np.zeros((len(m), n))
    rows[np.arange(len(m)), i] += 1.0
    rows[np.arange(len(m)), j] -= 1.0
    root = np.sqrt(weight)
    found: np.ndarray = np.linalg.lstsq(rows * root[:, None], m * root, rcond=None)[0]
    return found


def random_fleet(seed: int, n: int, degree: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    i = np.repeat(np.arange(n), degree // 2)
    return rng, i, (i + rng.integers(1, n, len(i))) % n


@pytest.mark.parametrize("seed", range(5))
def test_as_if_the_edge_had_not_been_there(seed: int) -> None:
    """Of few hosts to the picosecond, by solving anew without each pair; of the only way to a host nothing."""
    rng, i, j = random_fleet(seed, 12, 6)
    i, j = np.append(i, 12), np.append(j, 3)  # host 12 hangs at one edge
    i, j = np.append(i, j[:5]), np.append(j, i[:5])  # and some are there twice, the other way round
    truth, sigma = rng.normal(0, 1e5, 13), rng.uniform(5, 100, len(i))
    m = truth[i] - truth[j] + rng.normal(0, sigma)
    weight = sigma**-2.0
    x = least_squares(13, i, j, m, weight)
    graph = graph_of(13, i, j)
    found = held_out(graph, weight, m - (x[i] - x[j]), graph.components())
    assert np.isnan(found[-6])
    for edge in np.flatnonzero(np.isfinite(found)):
        rest = (np.minimum(i, j) != min(i[edge], j[edge])) | (np.maximum(i, j) != max(i[edge], j[edge]))
        without = least_squares(13, i[rest], j[rest], m[rest], weight[rest])
        assert found[edge] == pytest.approx(m[edge] - (without[i[edge]] - without[j[edge]]), abs=1e-3)
    assert np.isfinite(found).mean() > 0.8


def test_two_islands_and_a_host_alone() -> None:
    """Each by its own edges."""
    i, j = np.array([0, 1, 2, 3, 4, 5]), np.array([1, 2, 0, 4, 5, 3])
    graph = graph_of(7, i, j)
    residual = np.array([1.0, 1.0, 1.0, -2.0, -2.0, -2.0])
    assert held_out(graph, np.ones(6), residual, graph.components()) == pytest.approx(3 * residual)


def test_of_many_hosts_it_is_an_estimate() -> None:
    """Ten edges a host: within a tenth of what solving anew says, in the median and at the 99th percentile."""
    n = FEW + 6
    rng, i, j = random_fleet(1, n, 20)
    sigma = rng.uniform(10, 40, len(i))
    m = rng.normal(0, sigma)
    weight = sigma**-2.0
    x = least_squares(n, i, j, m, weight)
    graph = graph_of(n, i, j)
    found = np.abs(held_out(graph, weight, m - (x[i] - x[j]), graph.components()))
    some = rng.choice(len(i), 40, replace=False)
    truth = []
    for edge in some:
        rest = (np.minimum(i, j) != min(i[edge], j[edge])) | (np.maximum(i, j) != max(i[edge], j[edge]))
        without = least_squares(n, i[rest], j[rest], m[rest], weight[rest])
        truth.append(abs(m[edge] - (without[i[edge]] - without[j[edge]])))
    for share in 0.5, 0.99:
        assert np.quantile(found[some], share) == pytest.approx(np.quantile(truth, share), rel=0.1)


def test_it_is_above_the_error_of_the_solution() -> None:
    """Its 99th percentile, of 40 fleets with noise of their own on each edge, against the pair errors of neighbours."""
    found, true = [], []
    for seed in range(40):
        rng, i, j = random_fleet(seed, 24, 8)
        sigma = rng.uniform(10, 40, len(i))
        m = rng.normal(0, sigma)
        x = least_squares(24, i, j, m, sigma**-2.0)
        graph = graph_of(24, i, j)
        found.append(held_out(graph, sigma**-2.0, m - (x[i] - x[j]), graph.components()))
        true.append(x[i] - x[j])
    p99_found, p99_true = np.nanquantile(np.abs(found), 0.99), np.quantile(np.abs(true), 0.99)
    assert p99_true < p99_found < 3 * p99_true


def test_the_fleet_tells_what_most_edges_are_within() -> None:
    """Of exact stamps nothing but what int64 rounds; one host whose stamps are late by 300 ns on every edge, as much
    as the edges can hide, is seen by nobody, as all edges of a host agree."""
    fleet = ReportingFleet(count=6)
    assert fleet.fleet.held_out_ns == {}
    fleet.run(3)
    found = fleet.fleet.held_out_ns
    assert list(found) == [0.5, 0.99]
    assert 0 <= found[0.5] <= found[0.99] < 5
    fleet.lies_ns["h03"] = 300
    fleet.run(3)
    assert fleet.fleet.held_out_ns[0.99] < 5
