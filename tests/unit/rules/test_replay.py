"""The replay of a public trace of faults (tests/bench/rules/replay/): its table, its times, promtool's notation."""

from collections import Counter
from itertools import pairwise

from tests.bench.rules.replay.alerts import read
from tests.bench.rules.replay.history import notation
from tests.bench.rules.replay.trace import LONGEST_GAP_MIN, OTHER, faults


def test_the_trace_has_the_faults_that_its_authors_count() -> None:
    """584 in all, of which 70 are of cables and NICs; none ends before it begins, and they come in their order."""
    found = faults()

    assert len(found) == 584
    counts = Counter(fault.kind for fault in found)
    assert counts == {
        "link down": 40,
        "GID error": 11,
        "NIC lost": 8,
        "low speed": 10,
        "PCIe width low": 1,
        "host down": 2,
        OTHER: 512,
    }
    assert [fault.start_min for fault in found] == sorted(fault.start_min for fault in found)
    assert all(fault.start_min <= fault.end_min for fault in found)


def test_each_fault_of_the_fabric_lasts_but_none_waits_for_days() -> None:
    """The replay's moments are at most LONGEST_GAP_MIN apart."""
    moments = sorted(
        {at for fault in faults() if fault.kind != OTHER for at in (fault.start_min, fault.end_min)}
    )

    gaps = [after - before for before, after in pairwise(moments)]
    assert max(gaps) <= LONGEST_GAP_MIN + 1  # by rounding
    assert all(fault.end_min - fault.start_min >= 2 for fault in faults() if fault.kind != OTHER)


def test_values_in_the_notation_of_promtool() -> None:
    """Runs of equal values and of equal steps; a series that ends is stale, one that has not begun is not there."""
    assert notation([1.0, 1.0, 1.0, 4.0, 7.0, 10.0]) == "1+0x2 4+3x2"
    assert notation([None, None, 1.0, None, None, 0.0]) == "_x2 1 stale _x1 0"


def test_what_promtool_complains_of_is_what_fires() -> None:
    """By minute, also after hours."""
    text = """Unit Testing:  test.yaml
  FAILED:
    expr: "ALERTS{alertstate=\\"firing\\"}", time: 1h1m,
        exp: nil
        got: {__name__="ALERTS", alertname="A", instance="h1"} 1E+00, {__name__="ALERTS", alertname="B"} 1E+00
"""
    found = read(text, 70)

    assert found[61] == [{"alertname": "A", "instance": "h1"}, {"alertname": "B"}]
    assert sum(map(len, found)) == 2
