"""The text exposition: escaping, numbers, whole histograms under the cap; promtool and a parser accept it."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.fixtures.rules.summaries import add_summary

from fabricpulse.core.metrics import exposition as exposition_module
from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import Exposition, format_value, render_labels, sample_prefix

ROOT = Path(__file__).parents[3]

UP = MetricSpec("fabricpulse_test_up", "gauge", "Whether it is up.", ("device", "network"))
SENT = MetricSpec("fabricpulse_test_sent_total", "counter", "Packets sent.")
DELAY = MetricSpec(
    "fabricpulse_test_delay_seconds", "histogram", "Delay.", ("device",), buckets=(0.00001, 0.0005, 1.0)
)
EDGE = MetricSpec("fabricpulse_test_edge_seconds", "summary", "Delay of an \\ edge.", ("peer",))

GOLDEN = """\
# HELP fabricpulse_test_up Whether it is up.
# TYPE fabricpulse_test_up gauge
fabricpulse_test_up{device="rail0",network="a"} 1
fabricpulse_test_up{device="q\\"b\\\\n\\nx",network=""} 0
# HELP fabricpulse_test_sent_total Packets sent.
# TYPE fabricpulse_test_sent_total counter
fabricpulse_test_sent_total 12345678901234
# HELP fabricpulse_test_delay_seconds Delay.
# TYPE fabricpulse_test_delay_seconds histogram
fabricpulse_test_delay_seconds_bucket{device="rail0",le="1e-05"} 1
fabricpulse_test_delay_seconds_bucket{device="rail0",le="0.0005"} 3
fabricpulse_test_delay_seconds_bucket{device="rail0",le="1"} 3
fabricpulse_test_delay_seconds_bucket{device="rail0",le="+Inf"} 7
fabricpulse_test_delay_seconds_sum{device="rail0"} 0.125
fabricpulse_test_delay_seconds_count{device="rail0"} 7
# HELP fabricpulse_test_edge_seconds Delay of an \\\\ edge.
# TYPE fabricpulse_test_edge_seconds summary
fabricpulse_test_edge_seconds{peer="h1",quantile="0.5"} 7.5e-06
fabricpulse_test_edge_seconds{peer="h1",quantile="0.99"} NaN
fabricpulse_test_edge_seconds{peer="h1",quantile="1"} +Inf
fabricpulse_test_edge_seconds_sum{peer="h1"} 0.25
fabricpulse_test_edge_seconds_count{peer="h1"} 4
# HELP fabricpulse_exporter_samples Samples in this exposition, before the sample cap.
# TYPE fabricpulse_exporter_samples gauge
fabricpulse_exporter_samples 14
# HELP fabricpulse_exporter_dropped_samples Samples that the sample cap left out of this exposition, by metric family.
# TYPE fabricpulse_exporter_dropped_samples gauge
fabricpulse_exporter_dropped_samples{family=""} 0
"""


def filled(**options: int) -> Exposition:
    exposition = Exposition(**options)
    exposition.add(UP, ("rail0", "a"), 1)
    exposition.add(UP, ('q"b\\n\nx', ""), False)
    exposition.add(SENT, (), 12345678901234)
    exposition.add_histogram(DELAY, ("rail0",), (1, 2, 0, 4), 0.125)
    add_summary(exposition, EDGE, ("h1",), {0.5: 7.5e-6, 0.99: float("nan"), 1: float("inf")}, 0.25, 4)
    return exposition


def test_golden() -> None:
    """Every kind of metric, escaping and number, byte for byte."""
    assert filled().render().decode() == GOLDEN


def test_promtool_accepts_it() -> None:
    """Prometheus' own linter finds nothing in the golden text."""
    promtool = shutil.which("promtool") or shutil.which("promtool", path=str(ROOT / ".tools" / "usr" / "bin"))
    if promtool is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")

    result = subprocess.run(
        [promtool, "check", "metrics"], input=GOLDEN, capture_output=True, text=True, check=False, timeout=60
    )

    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@given(st.lists(st.text(), min_size=2, max_size=2), st.floats(allow_nan=False))
def test_any_label_and_value_comes_back(labels: list[str], value: float) -> None:
    """Whatever a label or value holds, a reader of the format gets it back."""
    exposition = Exposition()
    exposition.add(UP, labels, value)

    text = exposition.render().decode(errors="surrogatepass")
    [sample] = next(f for f in text_string_to_metric_families(text) if f.name == UP.name).samples

    assert sample.labels == dict(zip(UP.labels, labels, strict=True))
    assert sample.value == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (True, "1"),
        (2**63, "9223372036854775808"),
        (1e16, "1e+16"),
        (3.0, "3"),
        (0.1, "0.1"),
        (np.float64(0.1), "0.1"),
        (np.float32(0.5), "0.5"),
        (np.int64(7), "7"),
        (float("-inf"), "-Inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    """Numbers of Python and numpy are written as Prometheus writes them."""
    assert format_value(value) == text


@pytest.mark.parametrize("room", [5, 6, 8])
def test_cap_keeps_whole_metrics(room: int) -> None:
    """Under the cap a histogram is kept or dropped as one, later small metrics still fit, and drops are counted."""
    exposition = Exposition(sample_cap=room)
    exposition.add_histogram(DELAY, ("rail0",), (1, 2, 0, 4), 0.125)
    exposition.add_histogram(DELAY, ("rail1",), (1, 2, 0, 4), 0.125)
    exposition.add(SENT, (), 1)

    text = exposition.render().decode()

    kept = 1 if room >= 6 else 0
    assert text.count("fabricpulse_test_delay_seconds_bucket{") == 4 * kept
    assert text.count("fabricpulse_test_delay_seconds_count{") == kept
    assert ("fabricpulse_test_sent_total 1\n" in text) == (room != 6)
    assert "fabricpulse_exporter_samples 13\n" in text
    dropped = (
        f'fabricpulse_exporter_dropped_samples{{family="fabricpulse_test_delay_seconds"}} {12 - 6 * kept}\n'
    )
    assert dropped in text


def test_declared_families_keep_their_place() -> None:
    """`declare` fixes the order; a family without samples is not written."""
    exposition = Exposition()
    exposition.declare((UP, SENT))
    exposition.add(SENT, (), 1)

    text = exposition.render().decode()

    assert "fabricpulse_test_up" not in text
    assert text.startswith("# HELP fabricpulse_test_sent_total")


def test_wrong_number_of_labels() -> None:
    """A label too few is our own fault and raised at once, as is a bucket too few."""
    with pytest.raises(ValueError, match="2 labels expected, got 1"):
        render_labels(UP, ("rail0",))
    with pytest.raises(ValueError, match="4 counts expected, got 3"):
        Exposition().add_histogram(DELAY, ("rail0",), (1, 2, 3), 0.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nic_up", "gauge", "Help."), "begin with fabricpulse_"),
        (("fabricpulse_Nic", "gauge", "Help."), "snake_case"),
        (("fabricpulse_nic_total", "gauge", "Help."), "only counters"),
        (("fabricpulse_nic", "counter", "Help."), "only counters"),
        (("fabricpulse_nic", "histogram", "Help."), "have buckets"),
        (("fabricpulse_nic", "gauge", "Help.", (), (1.0,)), "have buckets"),
        (("fabricpulse_nic", "histogram", "Help.", (), (2.0, 1.0)), "must ascend"),
        (("fabricpulse_nic", "gauge", "No stop"), "full stop"),
        (("fabricpulse_nic", "gauge", "Help.", ("le",)), "Prometheus' own"),
        (("fabricpulse_nic", "gauge", "Help.", ("host",)), "Prometheus' own"),
        (("fabricpulse_nic", "gauge", "Help.", ("a", "a")), "distinct"),
        (("fabricpulse_nic", "gauge", "Help.", ("A-b",)), "distinct"),
    ],
)
def test_catalogue_refuses(arguments: tuple[object, ...], words: str) -> None:
    """A metric that breaks the naming rules cannot be declared."""
    with pytest.raises(ValueError, match=words):
        MetricSpec(*arguments)  # type: ignore[arg-type]


def test_beginnings_of_lines_are_kept_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered once for a metric and its label values; label values that come and go do not fill the memory."""
    monkeypatch.setattr(exposition_module, "_PREFIXES", {})
    monkeypatch.setattr(exposition_module, "_PREFIXES_MAX", 4)
    first = sample_prefix(EDGE, ("h1",))
    assert sample_prefix(EDGE, ["h1"]) is first
    for number in range(20):
        assert sample_prefix(EDGE, (f"h{number}",)) == f'{EDGE.name}{{peer="h{number}"}} '
        assert len(exposition_module._PREFIXES) <= 4
    with pytest.raises(ValueError, match="1 labels expected, got 2"):
        sample_prefix(EDGE, ("h1", "h2"))
