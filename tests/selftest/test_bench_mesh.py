"""The benchmark's defaults are the sizes that the gates were set for."""

from tests.bench.mesh.__main__ import parser, parts_of
from tests.bench.mesh.faults import shares


def test_defaults_are_the_sizes_of_the_gates():
    options = parser().parse_args([])
    sizes = (options.faults, options.flaps, options.stall_seconds, options.forged)
    assert sizes == (200, 500, 600, 1_000_000)
    detect = [(step.args, step.func.__name__) for step in parts_of(options)["detect"]]
    assert detect == [((1.0, 200, "<= 1200"), "bench_detect"), ((0.2, 200, "<= 350"), "bench_detect")]


def test_shares_lose_nothing():
    """Shares of work are as equal as whole numbers can be, and add up."""
    assert shares(500, 4) == [125] * 4
    assert sorted(shares(7, 3)) == [2, 2, 3]
