"""A collective that does not end is reported by the waiting host, after one question to the host that it waits for."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.fixtures.waiting import wait_for
from tests.fixtures.web.loopback_http import LoopbackServer, Reply, Request

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.qp.config import QpConfig, StallAlerting
from fabricpulse.qp.progress import Heartbeat
from fabricpulse.qp.stall import HostRanks, Stall, find_stalls
from fabricpulse.qp.stall_watch import StallWatch, content
from fabricpulse.qp.unmoved import UnmovedRank
from fabricpulse.qp.waiting import Waiting

STALLED_S = 5.0
RULES = Path(__file__).parents[3] / "rules" / "alerts" / "job.yaml"


def wait(rank: int, on: int, what: str, age_s: float = 9.0) -> Waiting:
    return Waiting("job", str(rank), f"h{on}", str(on), what, age_s)


def host(rank: int, *waiting: Waiting, silent_s: float = 0.2) -> HostRanks:
    return HostRanks(waiting, (Heartbeat("job", str(rank), 100 + rank, silent_s),))


@pytest.mark.parametrize(
    ("own", "peer", "found"),
    [
        # A rank that waits for nobody has not entered; one that waits is not the head.
        (wait(0, 1, "peer_send"), host(1), Stall("job", "rank", "1", "h1")),
        (wait(0, 1, "peer_receive"), host(1), Stall("job", "rank", "1", "h1")),
        (wait(0, 1, "peer_send"), host(1, wait(1, 2, "peer_send")), None),
        # Data under way, or no lane.
        (wait(0, 1, "delivery"), host(1), Stall("job", "network", "0", "h1", "1")),
        (wait(0, 1, "lane"), host(1, wait(1, 0, "peer_send")), Stall("job", "network", "0", "h1", "1")),
        # A stopped process acknowledges nothing: not the network.
        (wait(0, 1, "delivery"), host(1, silent_s=6), Stall("job", "process", "1", "h1")),
        (wait(0, 1, "peer_send"), host(1, silent_s=6), Stall("job", "process", "1", "h1")),
        # On its way in, or not for long enough.
        (wait(0, 1, "arrival"), host(1), None),
        (wait(0, 1, "peer_send", 4.9), host(1), None),
        # A process that nobody sees there may be anything.
        (wait(0, 1, "delivery"), HostRanks(), None),
        (wait(0, 1, "peer_send"), host(2), None),
        # Of another job.
        (wait(0, 1, "peer_send"), HostRanks((), (Heartbeat("other", "1", 1, 0.1),)), None),
    ],
)
def test_head_of_the_chain(own: Waiting, peer: HostRanks, found: Stall | None) -> None:
    """Network, process and rank are distinguished by what the peer's host says."""
    assert list(find_stalls([own], {"h1": peer}, STALLED_S)) == ([found] if found else [])


def test_another_users_job_of_that_name_is_another_job() -> None:
    """What he waits for, or that his process is silent, says nothing of this one; nor is his rank the one that is
    waited for. A host of a former release does not say whose its ranks are."""
    own = replace(wait(0, 1, "peer_send"), owner=7)
    his = Heartbeat("job", "1", 9, 60.0, 8)
    late = Heartbeat("job", "1", 5, 0.1, 7)
    blamed = Stall("job", "rank", "1", "h1")
    his_wait = replace(wait(1, 2, "peer_send"), owner=8)
    assert list(find_stalls([own], {"h1": HostRanks((his_wait,), (his, late))}, STALLED_S)) == [blamed]
    assert find_stalls([own], {"h1": HostRanks((), (replace(his, age_s=0.1),))}, STALLED_S) == {}
    assert list(find_stalls([own], {"h1": host(1)}, STALLED_S)) == [blamed]


@pytest.mark.parametrize("what", ["delivery", "peer_send"])
def test_a_stopped_process_accuses_nobody(what: str) -> None:
    """What it waited for has long been there; alive, it would be believed."""
    own = wait(0, on=1, what=what)
    stopped, alive = (host(0, own, silent_s=silent_s) for silent_s in (8.0, 0.2))

    assert find_stalls([own], {"h0": stopped, "h1": host(1)}, 5.0) == {}
    assert len(find_stalls([own], {"h0": alive, "h1": host(1)}, 5.0)) == 1


def test_no_answer_is_unknown() -> None:
    """A peer's host that has not answered: nothing is said of its rank."""
    assert find_stalls([wait(0, 1, "delivery"), wait(0, 1, "peer_send")], {}, STALLED_S) == {}


def test_labels_are_those_of_the_rule() -> None:
    """Push and rule are one alert: the labels of the rule, those by which its expression groups, and no others."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (rule,) = (r for g in groups for r in g["rules"] if r["alert"] == "FabricCollectiveStalled")
    config = StallAlerting(labels={"cluster": "gpu-a"})
    assert StallAlerting().stalled_s == 5
    assert f"> {StallAlerting().stalled_s:g}" in rule["expr"]
    assert "(cluster, workload, rank, peer, peer_rank)" in rule["expr"]
    for stall in (
        Stall("job", "network", "0", "h1", "1"),
        Stall("job", "rank", "1", "h1"),
    ):
        labels = dict(content(config, stall, 9).labels)
        assert labels.pop("alertname") == rule["alert"]
        assert {name: labels.pop(name) for name in rule["labels"]} == rule["labels"]
        assert (labels.pop("cluster"), labels.pop("head")) == ("gpu-a", stall.head)
        assert labels.pop("peer_rank", "") == stall.peer_rank
        assert labels == {"workload": "job", "rank": stall.rank, "peer": "h1"}
    unknown = content(config, Stall("job", "unknown", "", ""), 9)
    assert {"head": "unknown", "workload": "job"}.items() <= unknown.labels.items()
    assert not {"rank", "peer", "peer_rank"} & unknown.labels.keys()


class Fleet:
    """Peers by name behind one address, and an Alertmanager."""

    def __init__(self, hosts: Mapping[str, HostRanks]) -> None:
        self.hosts = dict(hosts)
        self.own = HostRanks()
        self.server = LoopbackServer(self.answer)

    def answer(self, request: Request) -> Reply:
        if request.path.startswith("/api/v2/"):
            return Reply(b"{}")
        ranks = self.hosts.get(request.path.split("/")[1])
        return Reply(status=500) if ranks is None else Reply(json.dumps(_document(ranks)).encode())

    def config(self, **settings: float) -> StallAlerting:
        url = self.server.url.rstrip("/")
        return StallAlerting(alertmanagers=(url,), peer_url=f"{url}/{{host}}", resolve_hold_s=0, **settings)  # type: ignore[arg-type]

    def asked(self) -> set[str]:
        return {r.path.split("/")[1] for r in self.server.requests if r.path.endswith("/api/v1/ranks")}

    def pushed(self) -> list[tuple[str, bool]]:
        """(rank, whether it is over) of all pushes."""
        bodies = [json.loads(r.body) for r in list(self.server.requests) if r.path == "/api/v2/alerts"]
        return [(a["labels"]["rank"], a["endsAt"] <= a["startsAt"]) for body in bodies for a in body]


def _document(ranks: HostRanks) -> dict[str, list[dict[str, object]]]:
    return {
        "waiting": [vars(w) for w in ranks.waiting],
        "heartbeats": [vars(h) for h in ranks.heartbeats],
    }


async def test_pushed_and_ended() -> None:
    """Nobody is asked while nothing is stuck; then the peer is, the alert is pushed once, and ended when it goes on."""
    fleet = Fleet({"h1": host(1)})
    with fleet.server:
        watch = StallWatch(fleet.config(), "h0", lambda: fleet.own)
        await watch.open()
        task = asyncio.create_task(watch.pusher.serve(fleet.server.url.rstrip("/")))
        fleet.own = host(0, wait(0, 1, "peer_send", 3.0))
        await watch.poll()
        assert (fleet.asked(), dict(watch.pusher.firing())) == (set(), {})
        fleet.own = host(0, wait(0, 1, "peer_send", 6.0))
        await watch.poll()
        await watch.poll()
        assert fleet.asked() == {"h1"}
        await asyncio.to_thread(wait_for, lambda: fleet.pushed() == [("1", False)], 10, "one push")
        # The peer falls silent while the request is still stuck: what was known stays.
        del fleet.hosts["h1"]
        await watch.poll()
        assert watch.failed == 1
        assert list(watch.pusher.firing()) == [Stall("job", "rank", "1", "h1")]
        fleet.own = host(0)
        await watch.poll()
        assert dict(watch.pusher.firing()) == {}
        await asyncio.to_thread(wait_for, lambda: len(fleet.pushed()) == 2, 10, "the end")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await watch.close()


async def test_a_job_that_only_the_profiler_sees() -> None:
    """Its stall is pushed without asking anybody, and ended when it goes on."""
    fleet = Fleet({})
    ranks = [UnmovedRank("job", "a1", 0, "inside", 6, 7.0), UnmovedRank("job", "a1", 1, "outside", 6, 7.0)]
    with fleet.server:
        watch = StallWatch(fleet.config(), "h0", lambda: fleet.own, lambda: ranks)
        await watch.open()
        await watch.poll()
        assert list(watch.pusher.firing()) == [Stall("job", "unknown", "", "")]
        ranks.clear()
        await watch.poll()
        assert (dict(watch.pusher.firing()), fleet.asked()) == ({}, set())
        await watch.close()


async def test_names_of_peers_are_names() -> None:
    """A job may say anything of who its peer is: nothing but a host's name is put into a URL."""
    fleet = Fleet({})
    names = ("h1/../x", "evil@h1", "h1:1", "", "h1?x", "-h1", "h" * 300, "h1#", "h 1")
    with fleet.server:
        watch = StallWatch(fleet.config(), "h0", lambda: fleet.own)
        await watch.open()
        fleet.own = HostRanks(tuple(Waiting("job", "0", name, "1", "peer_send", 9.0) for name in names))
        await watch.poll()
        assert (fleet.server.requests, watch.failed) == ([], 0)
        await watch.close()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"waiting": 1}', b'{"waiting": [{"rank": 3}]}', b"\xff"])
async def test_a_broken_answer_is_none(body: bytes) -> None:
    """What is no answer is counted, and nothing is said of the peer."""
    with LoopbackServer(lambda _: Reply(body)) as server:
        url = server.url.rstrip("/")
        config = StallAlerting(alertmanagers=(url,), peer_url=f"{url}/{{host}}")
        watch = StallWatch(config, "h0", lambda: host(0, wait(0, 1, "peer_send")))
        await watch.open()
        await watch.poll()
        assert (watch.failed, dict(watch.pusher.firing())) == (1, {})
        await watch.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peer_url: http://h0:9612", "{host}"),
        ("peer_client: {token_file: /t}", "https"),
        ("labels: {rank: '1'}", "rank"),
        ("{resend_s: 1, resolve_hold_s: 4}", "resolve_hold_s"),
    ],
)
def test_settings_that_cannot_be_meant(text: str, message: str) -> None:
    """A template without a host, a token without TLS, labels of the alert's own: refused."""
    with pytest.raises(ConfigError, match=message):
        parse_config(f"alerting: {text}" if text[0] == "{" else f"alerting:\n  {text}\n", QpConfig, "qp.yaml")
