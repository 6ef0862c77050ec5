"""A report as text, JSON and HTML: complete, and safe with names that strangers have chosen."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from tests.fixtures.why.facts import healthy, slow, with_nic
from tests.unit.why.test_causes import PLAYED

from fabricpulse.why.facts import Wait
from fabricpulse.why.html import html
from fabricpulse.why.infer import infer
from fabricpulse.why.journal import select
from fabricpulse.why.report import Done, Report
from fabricpulse.why.text import text

EVIL = '<img src=x onerror=alert(1)>"\x1b[31m'
HISTORY = tuple((1e9 + 60 * i, 100.0 if i < 30 else 40.0) for i in range(60))


def report(facts=None, **fields) -> Report:
    facts = replace(facts or PLAYED["nic_flap"][0], bandwidth_history=HISTORY)
    return Report(
        infer(facts), {"disconnects": "increase(x[15m]) > 1"}, HISTORY, "http://p", "http://g", **fields
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_html_escapes_everything() -> None:
    """Names of jobs, hosts and devices, queries and the journal make no tag and no attribute."""
    facts = with_nic(healthy((EVIL, "h1", "h2", "h3")), EVIL, "rail0", disconnects=2)
    facts = replace(slow(facts), workload=EVIL, waits=(Wait(EVIL, 1, EVIL, 2, EVIL, 9.0),))
    page = html(report(facts, journal=(Done(1e9, EVIL, EVIL),)))
    tags = Tags()
    tags.feed(page)
    assert "img" not in tags.seen
    assert "script" not in tags.seen
    assert not any(name.startswith("on") for name in tags.attributes)
    assert "&lt;img" in page
    assert "default-src &#x27;none&#x27;" in page
    # Nor do they order a terminal or turn the direction of what is read.
    facts = replace(
        facts, workload="\x1b]0;x\x07\u202e", waits=(Wait("h\x1b[2J", 1, "h\u2066", 2, "x", 9.0),)
    )
    shown = html(report(facts, journal=(Done(1e9, "\x9b31m", "\u200f"),)))
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_html_is_self_contained() -> None:
    """Nothing is fetched: links only."""
    page = html(report())
    assert not re.search(r"<(script|link|img|iframe)|url\(|@import|src=", page)
    assert "<svg" in page


def test_text_is_printable() -> None:
    """No control character of a name reaches the terminal."""
    shown = text(
        report(replace(healthy((EVIL, "h1", "h2", "h3")), workload=EVIL), journal=(Done(1e9, EVIL, EVIL),))
    )
    assert "\x1b" not in shown
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_all_forms_name_cause_place_and_what_to_do() -> None:
    """Cause, where, evidence, its query, and what to do are in each form."""
    r = report(journal=(Done(1e9, "h1/rail0", "nic.avoid succeeded"),))
    for form in (text(r), html(r), json.dumps(r.document())):
        for part in (
            "NIC flap",
            "rail0 of h1",
            "lost all of its peers 3 times",
            "increase(x[15m])",
            "transceiver",
            "nic.avoid succeeded",
        ):
            assert part in form


def test_links_have_workload_and_time() -> None:
    """A dashboard opens on this job at this time."""
    r = report(replace(healthy(), workload="a b&c"))
    link = r.dashboards()["Job"]
    assert "var-workload=a+b%26c" in link
    assert f"from={int((r.answer.at_s - 1800) * 1000)}" in link
    assert r.query_link("disconnects").startswith("http://p/graph?")
    assert r.query_link("no such query") == ""


def test_document_is_json() -> None:
    """Infinite and unknown numbers are JSON too."""
    assert json.loads(json.dumps(report().document(), allow_nan=False))["schema"] == 1


def test_journal_lines() -> None:
    """Only well-formed lines about hosts of the job, from the time asked about, newest first."""
    lines = [
        {"at": 5.0, "subject": "h1/rail0", "event": "old", "detail": {}},
        {"at": 20.0, "subject": "h1/rail0", "event": "avoided", "detail": {}},
        {"at": 30.0, "subject": "action-3", "event": "succeeded", "detail": {"target": "h1/rail0"}},
        {"at": 40.0, "subject": "h9/rail0", "event": "avoided", "detail": {}},
        {"at": 50.0, "subject": "h10/rail0", "event": "another's", "detail": {"why": "h1.example"}},
        {"at": "x"}, 7, None, {"at": 10**400, "subject": "h1/rail0", "event": "no time", "detail": {}},
    ]  # fmt: skip
    assert [d.text for d in select(lines, healthy(), 10.0)] == ["succeeded", "avoided"]
    assert select({"no": "list"}, healthy(), 10.0) == ()


def test_a_job_whose_bandwidth_says_nothing_is_drawn_by_its_collectives() -> None:
    """One that hangs, or waits for its input."""
    facts = replace(PLAYED["nic_flap"][0], pace_history=HISTORY)
    page = html(Report(infer(facts), {}, pace=HISTORY))
    assert "<h2>Collectives</h2>" in page
    assert "100 a second" in page
    assert "Bandwidth of the collectives" not in page
    # Links must be legible where the system is dark.
    assert "color-scheme:light dark" in page
