"""Which text format a scraper gets, and OpenMetrics: byte for byte and by a strict parser."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.fixtures.rules.summaries import add_summary
from tests.unit.core.test_exposition import GOLDEN, UP, filled

from fabricpulse.core.metrics.catalogue import MetricSpec, load_catalogue
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat, accepts_gzip, negotiate

PLAIN, OPENMETRICS = TextFormat.PLAIN, TextFormat.OPENMETRICS

# What the versions send of their own accord.
PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3_TEXT = "text/plain;version=0.0.4;escaping=underscores;q=0.5,*/*;q=0.2"
PROMETHEUS_3_PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
    + PROMETHEUS_3
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (PROMETHEUS_2_42, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        (PROMETHEUS_3_PROTOBUF, OPENMETRICS),
        (PROMETHEUS_3_TEXT, PLAIN),
        (BROWSER, PLAIN),
        ("", PLAIN),
        ("*/*", PLAIN),
        ("application/*", PLAIN),
        ("text/plain", PLAIN),
        ("application/openmetrics-text", OPENMETRICS),
        ("Application/OpenMetrics-Text; Version=1.0.0", OPENMETRICS),
        ('application/openmetrics-text; version="1.0.0"', OPENMETRICS),
        ("application/openmetrics-text; version=0.0.1", PLAIN),
        ("application/openmetrics-text; version=2.0.0", PLAIN),
        ("application/openmetrics-text;q=0", PLAIN),
        ("application/openmetrics-text;q=x", PLAIN),
        ("application/openmetrics-text;q=nan", PLAIN),
        ("application/openmetrics-text;q=0.5, text/plain;q=0.6", PLAIN),
        ("application/openmetrics-text;q=0.5, text/*;q=0.6", PLAIN),
        # The most specific range of a format counts, not the best.
        ("application/openmetrics-text;q=0.5, */*;q=0.9, text/plain;q=0.1", OPENMETRICS),
        ("application/openmetrics-text;q=0.5, application/openmetrics-text;version=1.0.0;q=0", PLAIN),
        ("application/xml", PLAIN),
        (",;,=;q", PLAIN),
    ],
)
def test_negotiation(accept: str, wanted: TextFormat) -> None:
    """OpenMetrics for who names it and ranks it no lower, the text format for everybody else."""
    assert negotiate(accept) is wanted


@given(st.text())
def test_any_header_is_answered(accept: str) -> None:
    """No header, however broken, fails a scrape."""
    assert negotiate(accept) in TextFormat
    assert accepts_gzip(accept) in (True, False)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("", False),
    ],
)
def test_gzip(header: str, wanted: bool) -> None:
    """Compression only for who takes it: `gzip;q=0` forbids it."""
    assert accepts_gzip(header) is wanted


def samples(text: str) -> list[str]:
    return [row for row in text.splitlines() if not row.startswith("#")]


def test_golden() -> None:
    """Byte for byte the text format but for the metadata: counters without their suffix, quotes in HELP escaped."""
    quoted = MetricSpec("fabricpulse_test_left_total", "counter", r'Left "so" to \ it.')
    exposition = filled()
    exposition.add(quoted, (), 1)

    text = exposition.render(OPENMETRICS).decode()

    plain = (
        '# HELP fabricpulse_test_left_total Left "so" to \\\\ it.\n# TYPE fabricpulse_test_left_total counter\n'
        "fabricpulse_test_left_total 1\n"
    )
    wanted = (
        '# HELP fabricpulse_test_left Left \\"so\\" to \\\\ it.\n# TYPE fabricpulse_test_left counter\n'
        "fabricpulse_test_left_total 1\n"
    )
    before = GOLDEN.replace("fabricpulse_exporter_samples 14\n", "fabricpulse_exporter_samples 15\n")
    before = before.replace(
        "# HELP fabricpulse_exporter_samples", plain + "# HELP fabricpulse_exporter_samples"
    )
    assert exposition.render().decode() == before
    after = before.replace(plain, wanted)
    for key in ("HELP", "TYPE"):
        after = after.replace(f"# {key} fabricpulse_test_sent_total ", f"# {key} fabricpulse_test_sent ")
    assert text == after
    assert samples(text) == samples(exposition.render().decode())


def test_a_strict_parser_reads_it() -> None:
    """prometheus-client's OpenMetrics parser, which checks order, names and values, finds the families and samples."""
    text = (filled().render(OPENMETRICS) + OPENMETRICS.end).decode()

    families = {family.name: family for family in text_string_to_metric_families(text)}

    assert families["fabricpulse_test_sent"].type == "counter"
    assert sum(len(family.samples) for family in families.values()) == len(samples(text))


@example(" ", ["", ""])
@given(st.text().filter(lambda text: "\n" not in text), st.lists(st.text(), min_size=2, max_size=2))
def test_any_help_and_label_comes_back(words: str, labels: list[str]) -> None:
    """Whatever a help text or a label holds, a reader of OpenMetrics gets it back (this one strips leading blanks)."""
    spec = MetricSpec(UP.name, "gauge", f"A{words}.", UP.labels)
    exposition = Exposition()
    exposition.add(spec, labels, 1)

    text = (exposition.render(OPENMETRICS) + OPENMETRICS.end).decode(errors="surrogatepass")
    family = next(f for f in text_string_to_metric_families(text) if f.name == UP.name)

    assert family.documentation == spec.help
    assert family.samples[0].labels == dict(zip(UP.labels, labels, strict=True))


def test_the_whole_catalogue() -> None:
    """Every metric that we have makes a family of OpenMetrics of its own, with its type and help."""
    exposition, specs = Exposition(), load_catalogue()
    for spec in specs.values():
        values = ["v"] * len(spec.labels)
        if spec.name.startswith("fabricpulse_exporter_"):
            continue  # the exposition writes its own
        if spec.type == "histogram":
            exposition.add_histogram(spec, values, [1] * (len(spec.buckets) + 1), 0.5)
        elif spec.type == "summary":
            add_summary(exposition, spec, values, {0.5: 1e-5, 1: 3e-5}, 0.5, 3)
        else:
            exposition.add(spec, values, 1)

    text = (exposition.render(OPENMETRICS) + OPENMETRICS.end).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}

    assert len(families) == len(specs)
    for spec in specs.values():
        family = families[spec.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (spec.type, spec.help)
