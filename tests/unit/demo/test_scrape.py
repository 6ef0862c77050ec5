"""The demo reads expositions of the text format, and only what it asks for."""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.lab.demo.scrape import parse_samples

SPEC = MetricSpec("fabricpulse_test_value", "gauge", "Test.", ("device", "peer"))
OTHER = MetricSpec("fabricpulse_test_values_total", "counter", "Test.")


def test_what_the_exposition_writes_is_read_back() -> None:
    """Labels with quotes, backslashes, line breaks and braces, and special values survive the way through."""
    exposition = Exposition()
    hard = 'a"b\\c\nd{e}, f="g"'
    exposition.add(SPEC, ("rail0", hard), 1.5)
    exposition.add(SPEC, ("rail1", ""), float("inf"))
    exposition.add(OTHER, (), 3)
    samples = parse_samples(exposition.render().decode(), {SPEC.name, OTHER.name})
    assert list(samples.all(SPEC.name)) == [
        ({"device": "rail0", "peer": hard}, 1.5),
        ({"device": "rail1", "peer": ""}, float("inf")),
    ]
    assert samples.one(OTHER.name) == 3
    assert samples.one(SPEC.name, device="rail1") == float("inf")
    assert samples.one(SPEC.name, device="rail2") is None


def test_names_are_matched_whole() -> None:
    """A name that only begins like a wanted one is not taken."""
    samples = parse_samples("fabricpulse_test_values_total 3\n", {"fabricpulse_test_values"})
    assert samples.by_name == {}
