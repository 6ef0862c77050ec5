"""What all benches print and judge with."""

import json
import math

import pytest
from tests.bench.rows import Rows, quantile


def test_quantile_is_an_observed_value_that_enough_are_not_above():
    values = [float(v) for v in range(1, 201)]
    assert quantile(values, 0.99) == 198.0
    assert quantile([7.0], 0.99) == 7.0
    assert quantile(values, 1) == 200.0


@pytest.mark.parametrize(
    ("must", "value", "ok"),
    [("<= 350", 350, True), ("<= 350", 350.1, False), (">= 0.9", 0.9, True), (">= 0.9", 0.89, False),
     ("== 0", 0, True), ("== 0", 1, False), ("<= 350", math.nan, False), (">= 0.9", math.nan, False)],
)  # fmt: skip
def test_a_missed_gate_is_remembered(must, value, ok, capsys):
    rows = Rows("a bench")
    rows.report("a case", "detect_ms_p99", value, "ms", must, peer="another")
    line = json.loads(capsys.readouterr().out)
    assert (line["ok"], line["must"], line["peer"]) == (ok, must, "another")
    assert rows.exit_code() == int(not ok)
    assert ("missed detect_ms_p99 (a case)" in capsys.readouterr().err) == (not ok)


def test_a_row_without_a_gate_is_not_judged(capsys):
    rows = Rows("a bench")
    rows.report("a case", "series", 7, "series")
    assert json.loads(capsys.readouterr().out).keys() == {"bench", "case", "metric", "value", "unit"}
    assert rows.exit_code() == 0
