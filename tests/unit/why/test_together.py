"""Many questions as one: what comes back is what each would have got alone."""

import promql_parser
import pytest

from fabricpulse.core.web.prometheus import Sample
from fabricpulse.why.queries import QUERIES, Scope
from fabricpulse.why.together import MOST_TEXT, groups, split, union

HOSTS = tuple(f"gpu-{i:04d}.example" for i in range(1000))


@pytest.mark.parametrize("hosts", [("h0",), HOSTS])
def test_unions_are_promql_and_short_enough(hosts: tuple[str, ...]) -> None:
    """Of a job on a thousand hosts more of them are asked."""
    texts = {query.name: Scope("train-7", hosts, 'cluster="a"').fill(query.text) for query in QUERIES}
    unions = [union(group) for group in groups(texts, 6)]
    assert len(unions) >= 6
    assert max(map(len, unions)) <= MOST_TEXT
    for text in unions[:1]:
        promql_parser.parse(text)
    assert sorted(name for group in groups(texts, 6) for name in group) == sorted(texts)


def test_fewer_questions_than_groups() -> None:
    """No group is empty."""
    assert groups({"a": "x", "b": "y"}, 6) == [{"a": "x"}, {"b": "y"}]


def test_each_question_gets_its_own() -> None:
    """Without the label, and nothing is made up for a question without samples."""

    def sample(question: str, value: float) -> Sample:
        return Sample({"instance": "h0", "fabricpulse_question": question}, value)

    reported = split([sample("a", 1.0), sample("b", 2.0), sample("a", 3.0)], ["a", "b", "c"])
    assert reported == {
        "a": [Sample({"instance": "h0"}, 1.0), Sample({"instance": "h0"}, 3.0)],
        "b": [Sample({"instance": "h0"}, 2.0)],
        "c": [],
    }


@pytest.mark.parametrize("labels", [{}, {"fabricpulse_question": "x"}])
def test_a_server_that_does_not_understand(labels: dict[str, str]) -> None:
    """Samples of no question, or of another, are not taken for answers."""
    assert split([Sample(labels, 1.0)], ["a"]) is None
