"""What all benches print and judge with."""

import json
import math

import pytest
from tests.bench.plugin.speed import Pairs, control_s, profiler_s
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


def end(cpu: float, profiler: float = 0.0, **threads: float) -> dict[str, object]:
    """One end of a run as tests/native/net_bench/net_bench.cc tells it, seconds for a GB."""
    names = {"main": "fabricpulse", "control": "fabricpulse-ctl"}
    by_thread = {names[name]: seconds for name, seconds in threads.items()}
    return {
        "gb_per_s": 1.0,
        "cpu_s_per_gb": cpu,
        "profiler_s_per_gb": profiler,
        "threads_s_per_gb": by_thread,
    }


def test_a_share_is_the_things_own_time_over_all_other(capsys):
    """Both ends together, median of the rounds: 0.04 of 2.04 s/GB is a fiftieth of the rest."""
    pairs = Pairs()
    for control in (0.01, 0.02, 0.02):
        run = {role: end(1.0 + control, main=0.3, control=control) for role in ("receive", "send")}
        pairs.add("on", run)
        pairs.add_share(run, control_s)
        pairs.add("off", {role: end(5.0) for role in ("receive", "send")})
    pairs.report("asked", "control", share="<= 0.015")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["metric"], row.get("ok")) for row in rows] == [
        ("control_ratio", None),
        ("control_cost", None),
        ("control_share", False),
    ]
    assert rows[-1]["value"] == pytest.approx(0.02)
    assert rows[-1]["rounds"] == pytest.approx([0.01, 0.02, 0.02])


def test_the_profilers_own_time_is_its_calls_and_threads():
    assert profiler_s(end(1.0, 0.003, main=0.0005, control=0.0001)) == pytest.approx(0.0036)
