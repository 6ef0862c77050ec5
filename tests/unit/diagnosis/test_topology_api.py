"""The tree of the fabric as JSON and metrics: as long as it may be true, and no longer."""

import asyncio
import json
import time

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.diagnosis.daemon.service import DiagnosisService
from fabricpulse.diagnosis.daemon.topology_api import expose_topology, topology_json
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared
from fabricpulse.diagnosis.tree.surveyed import MOST_MISCABLED, Surveyed, surveyed

KEEP_S = 600.0
WRONG = {
    "nic": "h1/rail0",
    "what": "wrong_rail",
    "leaf": "leaf(a)",
    "leaf_rail": "rail1",
    "expected": "leaf(b)",
}
DOCUMENT = {
    "edges": 40,
    "unseparated": 1,
    "missing": [],
    "pairs": 36,
    "temporary_pairs": 5,
    "wanted_pairs": 7,
    "placed": 2,
    "nics": [{"nic": "h0/rail0"}, {"nic": "h1/rail0"}, {"nic": "h2/rail0"}],
    "groups": [{"kind": "pod"}, {"kind": "leaf"}, {"kind": "leaf"}, {"kind": "machine"}],
    "miscabled": [WRONG],
    "computed": "2026-11-25T16:00:00Z",
}
LAST = surveyed(DOCUMENT, 1000.0)


def reported(last: Surveyed | None, now_s: float):
    return json.loads(topology_json(last, KEEP_S, now_s))


def metrics(last: Surveyed | None, now_s: float) -> dict[str, float]:
    out = Exposition(1000)
    expose_topology(out, last, KEEP_S, now_s)
    lines = out.render(TextFormat.PLAIN).decode().splitlines()
    return {
        line.rpartition(" ")[0].removeprefix("fabricpulse_topology_"): float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("fabricpulse_topology_")
    }


def test_a_tree_is_reported_with_its_age() -> None:
    """The document as it was computed, and the seconds since its delays were taken."""
    assert reported(LAST, 1012.34) == {**DOCUMENT, "age_s": 12.3}
    assert metrics(LAST, 1060.0) == {
        "known": 1,
        "age_seconds": 60,
        'nics{place="placed"}': 2,
        'nics{place="unknown"}': 1,
        "leaves": 2,
        "leaves_unseparated": 1,
        'edges{delay="known"}': 36,
        'edges{delay="unknown"}': 4,
        "wrong_cables": 1,
        'nic_miscabled{peer="h1",peer_device="rail0",reason="wrong_rail",at="leaf(a)",expected="leaf(b)"}': 1,
    }


def test_an_old_tree_is_unknown() -> None:
    """Once it is older than delays count nothing of it is reported but its age: a process that is stopped reports
    nothing.
    """
    assert reported(LAST, 1000 + KEEP_S)["placed"] == 2
    late = reported(LAST, 1001 + KEEP_S)
    assert (late["placed"], late["nics"], late["groups"], late["miscabled"]) == (0, [], [], [])
    assert (late["computed"], late["age_s"]) == (None, None)
    assert "delays 601 s ago, and delays count for 600 s" in late["missing"][0]
    assert metrics(LAST, 1001 + KEEP_S) == {"known": 0, "age_seconds": 601}


def test_before_the_first_tree() -> None:
    """Nothing is known, and no age is made up."""
    assert "nothing has been computed yet" in reported(None, 5.0)["missing"][0]
    assert metrics(None, 5.0) == {"known": 0}


def test_a_tree_without_leaves_is_none() -> None:
    """A computation that places no NIC is reported with its figures, and is no known tree."""
    none = surveyed({**DOCUMENT, "placed": 0, "groups": [], "miscabled": []}, 1000.0)
    found = metrics(none, 1001.0)
    assert (found["known"], found["leaves"], found['nics{place="unknown"}']) == (0, 0, 3)


def test_series_of_wrong_cables_are_bounded() -> None:
    """All are counted and in the document, some hundred have a series."""
    many = surveyed({**DOCUMENT, "miscabled": [{**WRONG, "nic": f"h{n}/rail0"} for n in range(1000)]}, 1000.0)
    found = metrics(many, 1001.0)
    assert found["wrong_cables"] == 1000
    assert sum(name.startswith("nic_miscabled") for name in found) == MOST_MISCABLED
    assert len(reported(many, 1001.0)["miscabled"]) == 1000


def test_the_service_forgets_what_its_worker_reported_last(monkeypatch) -> None:
    """Of a worker that answers no more, because it is stopped, the tree is served until it is too old; of one that has
    been replaced it is not served at all.
    """
    service = DiagnosisService(Declared({}, {}, KEEP_S), lambda _: True)

    def served() -> int:
        # The handler reads nothing of the request.
        response = asyncio.run(service.serve_topology(None))  # type: ignore[arg-type]
        assert isinstance(response.body, bytes)
        return int(json.loads(response.body)["placed"])

    assert served() == 0
    for age_s, placed in ((KEEP_S - 60, 2), (KEEP_S + 1, 0)):
        service._answered(Answer(surveyed=surveyed(DOCUMENT, time.monotonic() - age_s)))
        service._answered(Answer())
        assert served() == placed
    service._answered(Answer(surveyed=surveyed(DOCUMENT, time.monotonic())))
    assert served() == 2
    service.process.starts += 1
    assert served() == 0
