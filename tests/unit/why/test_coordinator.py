"""Leaves of a job's NICs by the coordinator: between which of them flows wait, and that its answer may be anything."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.web.loopback_http import LoopbackServer, Reply
from tests.fixtures.why.facts import healthy, slow, with_flows
from tests.unit.why.test_causes import QUEUED
from tests.unit.why.test_credentials import prometheus, token

from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.why.command import command
from fabricpulse.why.facts import Facts
from fabricpulse.why.finding import LIKELY
from fabricpulse.why.infer import Answer, infer
from fabricpulse.why.sources.coordinator import read_leaves, select

RAILS = ("rail0", "rail1")


def fleet(leaf_of: dict[str, str]) -> Membership:
    """Host -> leaf of all its NICs, by rail."""
    return Membership(
        hosts=tuple(
            Host(
                name=host,
                nics=tuple(
                    Nic(
                        device=rail, address=f"10.{r}.0.{n + 1}", network=rail, leaf=leaf and f"{leaf}-{rail}"
                    )
                    for r, rail in enumerate(RAILS)
                ),
            )
            for n, (host, leaf) in enumerate(leaf_of.items())
        )
    )


def queued(facts: Facts, *sources: str) -> Facts:
    """Flows over rail0 from these hosts wait."""
    return slow(
        with_flows(facts, lambda f: f.source.host in sources and f.source.device == "rail0", **QUEUED)
    )


def placed(facts: Facts, leaf_of: dict[str, str]) -> Answer:
    leaves, unknown = select(fleet(leaf_of), facts)
    return infer(replace(facts, leaves=leaves, limits=unknown))


def test_flows_that_cross_are_named_by_their_leaves() -> None:
    """Of a ring over two pods two flows cross; where they go is said with the contention."""
    facts = queued(healthy(), "h1", "h2")
    first = placed(facts, {"h0": "a", "h1": "a", "h2": "a", "h3": "b"}).causes[0].finding
    assert first.cause == "contention_self" and first.confidence >= LIKELY
    assert any("1 of the 2 flows whose leaves are known" in e.text for e in first.evidence)
    assert first.confidence == infer(facts).causes[0].finding.confidence


def test_flows_below_their_leaves_do_not_meet() -> None:
    """Two flows from and to four NICs, each below one leaf: whatever they wait for, it is not one another. Of one, or
    where a leaf is not known, nothing follows."""
    facts = queued(healthy(), "h0", "h2")
    together = {"h0": "a", "h1": "a", "h2": "b", "h3": "b"}
    assert infer(facts).causes[0].finding.confidence >= LIKELY
    first = placed(facts, together).causes[0].finding
    assert first.confidence < LIKELY and "do not share a link" in first.evidence[-1].text
    assert placed(facts, together | {"h1": ""}).causes[0].finding.confidence >= LIKELY
    assert placed(queued(healthy(), "h0"), together).causes[0].finding.confidence >= LIKELY


def test_names_of_hosts() -> None:
    """Fully qualified or short, in any case; one that two hosts share is nobody's."""
    membership = fleet({"H0.example.org": "a", "h1.a.org": "b", "h1.b.org": "c"})
    leaves, unknown = select(membership, healthy())
    assert leaves["rail0 of h0"] == "a-rail0" and "rail0 of h1" not in leaves
    assert unknown == ("the coordinator does not list 3 of 4 hosts (h1, h2, h3)",)


@pytest.mark.parametrize(
    ("of_job", "listed", "found"),
    [
        ("h1", "h1.a.org", True),
        ("H1.a.org", "h1", True),
        ("h1.a.org", "h1.b.org", False),
        ("10.9.9.9", "10.0.0.1", False),
        ("10.9.9.9", "10.a.org", False),
        ("10.9.9.9", "10", False),
        ("10.9.9.9", "10.9.9.9", True),
        ("fd00::1", "fd00::2", False),
    ],
)
def test_which_names_are_of_one_host(of_job: str, listed: str, found: bool) -> None:
    """A wrong leaf would say that flows do not meet."""
    facts = healthy((of_job, "x2", "x3", "x4"))
    leaves, unknown = select(fleet({listed: "a"}), facts)
    assert (f"rail0 of {of_job}" in leaves) == found
    assert unknown == (
        ("the coordinator does not list 3 of 4 hosts (x2, x3, x4)",)
        if found
        else (f"the coordinator does not list 4 of 4 hosts ({of_job}, x2, x3, …)",)
    )


def test_one_that_is_listed_is_not_two_of_the_job() -> None:
    """Which of them it is, nobody tells."""
    facts = healthy(("h1.a.org", "h1.b.org", "h2", "h2.a.org"))
    leaves, _ = select(fleet({"h1": "a", "h2": "b"}), facts)
    assert {nic.rpartition(" ")[2] for nic in leaves} == {"h2"}


def test_a_leaf_that_no_file_may_name() -> None:
    """It is not checked as a file is; its name would be in the evidence."""
    leaves, _ = select(fleet({"h0": "a" * 300, "h1": "b"}), healthy())
    assert set(leaves.values()) == {"b-rail0", "b-rail1"}


async def test_a_token_that_is_not_there_is_said(tmp_path: Path) -> None:
    config = HttpClientConfig(token_file=str(tmp_path / "none"))
    leaves, (unknown,) = await read_leaves("http://127.0.0.1:1", config, healthy())
    assert leaves == {} and "cannot be asked" in unknown and "none" in unknown


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"<html>"),
        Reply(b"[]"),
        Reply(b"[" * 100_000),
        Reply(b"\xff" * 9),
        Reply(b'{"hosts": 1}'),
        Reply(status=503),
    ],
)
async def test_what_is_no_coordinator_is_said(reply: Reply) -> None:
    with LoopbackServer(lambda _: reply) as server:
        leaves, (unknown,) = await read_leaves(server.url, HttpClientConfig(timeout_s=5), healthy())
    assert leaves == {} and "coordinator" in unknown
    leaves, (unknown,) = await read_leaves("http://127.0.0.1:1", HttpClientConfig(timeout_s=5), healthy())
    assert leaves == {} and "cannot be reached" in unknown


def test_it_is_shown_its_own_credentials_alone(tmp_path: Path) -> None:
    """And an answer is given without it."""
    with LoopbackServer(prometheus) as prom, LoopbackServer(lambda _: Reply(status=404)) as other:
        options: tuple[str, ...] = (
            "--prometheus",
            prom.url,
            "--token-file",
            token(tmp_path, "for-prometheus"),
        )
        options += (
            "--coordinator",
            other.url,
            "--coordinator-token-file",
            token(tmp_path, "for-coordinator"),
        )
        result = CliRunner().invoke(command, ["job", "--output", "json", *options], catch_exceptions=False)
        assert {r.headers.get("authorization") for r in other.requests} == {"Bearer for-coordinator"}
        assert {r.headers.get("authorization") for r in prom.requests} == {"Bearer for-prometheus"}
    assert any("answers 404" in line for line in json.loads(result.stdout)["unknown"])
