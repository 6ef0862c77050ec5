"""The page of suspects: what it says, that it is bounded, and that no name can put anything into it."""

from html.parser import HTMLParser
from typing import Any

from fabricpulse.diagnosis.daemon.page import suspects_page

SUSPECT = {
    "what": "loss",
    "kind": "link",
    "component": "leaf1",
    "peer": "spine2",
    "share": 0.05,
    "confidence": 0.99,
    "flows": 9,
    "pairs": 3,
    "sufferers": ["h1/e to h4/e", "h2/e to h4/e"],
    "age_s": 240.0,
    "alternatives": ["switch spine2"],
    "runner_up": "",
    "silent": False,
    "leaf": "",
    "queue_pairs": {"paths": 12, "jobs": ("train-7", "train-8"), "named": ()},
}


class Read(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


LEAF = {
    "leaf": "leaf1",
    "network": "rail0",
    "live": 2,
    "expected": 3,
    "siblings": 3,
    "missing": ["spine2"],
    "since": None,
    "watched_since": "2026-01-02T03:04:05Z",
}


def document(*suspects: dict[str, Any], hosts: int = 4, leaves: tuple[Any, ...] = ()) -> dict[str, Any]:
    """As /api/v1/suspects answers."""
    paths = {"whole": 3, "fewer": len(leaves), "unknown": 2, "leaves": list(leaves)}
    flows = {"hosts": hosts, "flows": 96, "paths": 64}
    return {**flows, "fails": False, "suspects": list(suspects), "leaf_paths": paths}


def test_a_suspect_is_shown_with_who_suffers_and_for_how_long() -> None:
    """What, where, how much, since when, who, and what else it may be."""
    text = Read(suspects_page(document(SUSPECT))).text
    for said in (
        "link leaf1 to spine2",
        "5 %",
        "4 min",
        "h1/e to h4/e",
        "and 1 more pairs",
        "switch spine2",
        "train-8",
    ):
        assert said in text


def test_names_are_text() -> None:
    """Names come from reports: whatever they hold adds no element to the page."""
    plain = Read(suspects_page(document(SUSPECT)))
    evil = "<script>alert(1)</script>\"'&<img src=x onerror=y>"
    hostile = {**SUSPECT, "component": evil, "peer": evil, "sufferers": [evil, evil], "alternatives": [evil]}
    hostile["queue_pairs"] = {"paths": 12, "jobs": (evil, evil), "named": ()}
    read = Read(suspects_page(document(hostile)))
    assert read.tags == plain.tags
    assert any(evil in text for text in read.text)
    plain, leaf = Read(suspects_page(document(leaves=(LEAF,)))), {**LEAF, "leaf": evil, "missing": [evil]}
    read = Read(suspects_page(document(leaves=({**leaf, "network": evil},))))
    assert read.tags == plain.tags
    assert any(evil in text for text in read.text)


def test_many_suspects_do_not_make_a_large_page() -> None:
    """The surest hundred, and how many there are."""
    page = suspects_page(document(*(100_000 * [SUSPECT])))
    assert "100000 suspects, the surest 100" in page
    assert Read(page).tags.count("tr") == 101


def test_nobody_who_reports_is_not_all_well() -> None:
    """Without reports nothing is known."""
    assert "not known" in suspects_page(document(hosts=0))
    assert "No component is suspect" in suspects_page(document())


def test_leaves_with_fewer_live_paths_have_a_table() -> None:
    """Which, how many next hops of how many, which is missing, since when; never seen is said as that."""
    again = {**LEAF, "leaf": "leaf2", "since": "2026-01-01T00:00:00Z"}
    text = Read(suspects_page(document(leaves=(LEAF, again)))).text
    never = "never seen, watched since 2026-01-02T03:04:05Z"
    for said in ("leaf1", "rail0", "2 of 3", "spine2", never, "2026-01-01T00:00:00Z"):
        assert said in text
    assert any("2 of 5 leaves whose paths are known; of 2 they are not" in part for part in text)
    assert "fewer live paths" not in suspects_page(document())
    assert Read(suspects_page(document(leaves=1000 * (LEAF,)))).tags.count("tr") == 101


def test_a_diagnosis_that_fails_is_not_all_well() -> None:
    """Without suspects nothing is known then."""
    text = " ".join(Read(suspects_page({**document(), "fails": True})).text)
    assert "not known" in text and "No component" not in text
