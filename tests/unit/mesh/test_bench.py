"""The benchmark's own arithmetic, and that its defaults are the sizes that the gates were set for."""

import json

import pytest
from tests.bench import mesh_report
from tests.bench.bench_mesh import parser, parts_of
from tests.bench.mesh_faults import shares
from tests.bench.mesh_report import quantile, report


def test_defaults_are_the_sizes_of_the_gates():
    options = parser().parse_args([])
    sizes = (options.faults, options.flaps, options.stall_seconds, options.forged)
    assert sizes == (200, 500, 600, 1_000_000)
    detect = [(step.args, step.func.__name__) for step in parts_of(options)["detect"]]
    assert detect == [((1.0, 200, 1_200), "bench_detect"), ((0.2, 200, 350), "bench_detect")]


def test_quantile_is_an_observed_value_that_enough_are_not_above():
    values = [float(v) for v in range(1, 201)]
    assert quantile(values, 0.99) == 198.0
    assert quantile([7.0], 0.99) == 7.0
    assert quantile(values, 1) == 200.0


def test_shares_lose_nothing():
    assert shares(500, 4) == [125] * 4
    assert sorted(shares(7, 3)) == [2, 2, 3]


@pytest.mark.parametrize(("value", "ok"), [(350, True), (350.1, False)])
def test_a_missed_gate_is_remembered(value, ok, capsys, monkeypatch):
    missed = []
    monkeypatch.setattr(mesh_report, "missed", missed)
    report("a case", "detect_ms_p99", value, "ms", 350)
    line = json.loads(capsys.readouterr().out)
    assert (line["ok"], line["gate"]) == (ok, 350)
    assert bool(missed) == (not ok)
