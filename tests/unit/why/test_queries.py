"""Every question is PromQL on series that exist, whatever the names of jobs and hosts are."""

import ast
import re
from pathlib import Path

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fabricpulse.why.causes
from fabricpulse.core.metrics.catalogue import load_catalogue
from fabricpulse.why.queries import (
    EDGES,
    EXPORTERS,
    FLOOR,
    GONE,
    HISTORY,
    LOSSY_EDGES,
    PACE_HISTORY,
    PROBE_DELAY,
    PROCESSES,
    QUERIES,
    RECORDED_DELAY,
    WORKLOADS,
    Query,
    Scope,
    alternatives,
)

RULES = Path(__file__).parents[3] / "rules" / "recording"
RECORDED = re.findall(r"record: (\S+)", "".join(p.read_text() for p in RULES.glob("*.yaml")))
CAUSES = Path(next(iter(fabricpulse.why.causes.__path__)))
ALL = (
    PROCESSES,
    *QUERIES,
    RECORDED_DELAY,
    WORKLOADS,
    EDGES,
    EXPORTERS,
    GONE,
    FLOOR,
    LOSSY_EDGES,
    PROBE_DELAY,
    Query("history", HISTORY),
    Query("pace_history", PACE_HISTORY),
)


@pytest.mark.parametrize("query", ALL, ids=lambda q: q.name)
def test_series_exist(query: Query) -> None:
    """Each names exported or recorded series only, dcgm-exporter's apart."""
    known = {*load_catalogue(), *RECORDED}
    named = set(re.findall(r"(?:\w+:)?fabricpulse_\w+(?::\w+)?", query.text))
    assert {
        re.sub("_(bucket|sum|count)$", "", name) if name not in known else name for name in named
    } <= known
    promql_parser.parse(Scope("train-7", ("h0", "h1"), 'cluster="a"').fill(query.text))


def test_evidence_names_its_query() -> None:
    """What shows a piece of evidence is a query that has been put, or none."""
    asked = {query.name for query in ALL} | {""}
    for file in CAUSES.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Evidence":
                query = node.args[2] if len(node.args) > 2 else ast.Constant("")
                either = [query.body, query.orelse] if isinstance(query, ast.IfExp) else [query]
                assert {one.value for one in either if isinstance(one, ast.Constant)} <= asked, file.name


# What a label can hold: no NUL, which PromQL has no string for.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
NAMES = st.one_of(
    TEXT, st.sampled_from(['"', "{{job}}", "{w}", '"} or vector(1) #', "\\", "a\nb", "{hosts}"])
)


@settings(max_examples=60, deadline=None)
@given(NAMES, st.lists(NAMES, max_size=3), st.sampled_from(ALL))
def test_names_stay_names(workload: str, hosts: list[str], query: Query) -> None:
    """A name with quotes, braces or placeholders is a label value and nothing else."""
    filled = Scope(workload, tuple(hosts)).fill(query.text)
    promql_parser.parse(filled)
    assert _shape(filled) == _shape(Scope("train-7", ("h0",)).fill(query.text))


def _shape(text: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text, flags=re.DOTALL)


def test_no_host_matches_nothing() -> None:
    """An empty list of hosts does not become a pattern that matches all."""
    assert re.fullmatch(alternatives(()), "") is None


@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1), min_size=1))
def test_exactly_these_hosts(hosts: list[str]) -> None:
    """The pattern matches each of the hosts, and a dot matches a dot."""
    assert all(re.fullmatch(alternatives(hosts), host) for host in hosts)
    assert not re.fullmatch(alternatives(["a.b"]), "axb")
