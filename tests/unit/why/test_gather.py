"""Which questions are put, to a Prometheus that is a function."""

import asyncio
import gc
import re
from dataclasses import replace

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.prometheus import PromQl, RefusedError, Sample
from fabricpulse.why import gather as gather_module
from fabricpulse.why import infer as infer_module
from fabricpulse.why.analysis import Analysis
from fabricpulse.why.facts import Facts
from fabricpulse.why.gather import Times, gather
from fabricpulse.why.infer import Answer, infer
from fabricpulse.why.queries import PROCESSES, QUERIES, Scope
from fabricpulse.why.shorter import MOST_BYTES, most_bytes, parts, together

HOSTS = tuple(f"h{number:03d}" for number in range(200))
COMPONENTS = ("mesh", "nic", "qp", "clocksync-sidecar")
_ASKED = re.compile(r'"fabricpulse_question", "(\w+)", "", ""\)')
# What a question that is put by itself is about.
_ALONE = {
    "fabricpulse_qp_processes": "processes",
    "flow:fabricpulse_qp_owd_seconds:p50_2m": "recorded_delay",
    "fabricpulse_qp_owd_seconds_bucket": "delay",
    "fabricpulse_build_info": "exporters",
}


class Server(PromQl):
    """Answers by the names of questions. requests : those of each request. floors : the moments of which quickest
    chunks are asked about."""

    def __init__(self, answers: dict[str, list[Sample]], scope: Scope) -> None:
        super().__init__("http://127.0.0.1:1", HttpClientConfig())
        self.answers = answers
        hosts = tuple(sorted(s.labels["instance"] for s in answers["processes"]))
        self.names = {replace(scope, hosts=hosts).fill(query.text): query.name for query in QUERIES}
        self.requests: list[tuple[str, ...]] = []
        self.texts: dict[str, str] = {}
        self.floors: list[float | None] = []

    async def instant(self, query: str, at_s: float | None = None) -> list[Sample]:
        names = tuple(_ASKED.findall(query))
        self.requests.append(names)
        if "histogram_quantile(0.1," in query:
            self.floors.append(at_s)
        self.texts |= dict.fromkeys(names, query)
        if not names:  # one question, as it is
            alone = self.names.get(query) or next(name for word, name in _ALONE.items() if word in query)
            return self.answers.get(alone, [])
        return [
            Sample(sample.labels | {"fabricpulse_question": name}, sample.value)
            for name in names
            for sample in self.answers.get(name, ())
        ]

    async def history(self, *_: object) -> list[tuple[float, float]]:
        return []


def flow(number: int) -> dict[str, str]:
    """Labels of the receiver of a ring's flow."""
    source, target = HOSTS[number - 1], HOSTS[number]
    return {"instance": target, "device": "rail0", "peer": source, "peer_device": "rail0"}


def sent(number: int) -> dict[str, str]:
    return {"instance": HOSTS[number - 1], "device": "rail0", "peer": HOSTS[number], "peer_device": "rail0"}


def ask(
    delays: dict[str, list[Sample]], window_s: int = 120, extra: str = "", kind: type["Server"] | None = None
) -> tuple[Facts, Server]:
    scope = Scope("train-7", extra=extra, window_s=window_s)
    server = (kind or Server)(
        {
            "processes": [Sample({"instance": host}, 1.0) for host in HOSTS],
            "sent": [Sample(sent(n), 1e9) for n in range(len(HOSTS))],
            "exporters_counted": [Sample({"daemon": name}, float(len(HOSTS))) for name in COMPONENTS],
            **delays,
        },
        scope,
    )
    facts, _ = asyncio.run(gather(server, scope, Times(1e6, 1e6 - 3600)))
    return facts, server


def all_flows(delay_s: float, slow: int = -1) -> list[Sample]:
    return [Sample(flow(n), 400e-6 if n == slow else delay_s) for n in range(len(HOSTS))]


def test_what_is_recorded_is_not_computed() -> None:
    """Quantiles of all flows are most of what an answer costs Prometheus."""
    facts, server = ask({"recorded_delay": all_flows(20e-6)})
    assert {f.delay_s for f in facts.flows} == {20e-6}
    assert not {"delay", "floor", "probe_delay"} & {name for names in server.requests for name in names}
    assert len(server.requests) <= 12
    # Recorded over another window than is asked about.
    facts, server = ask({"recorded_delay": all_flows(20e-6), "delay": all_flows(30e-6)}, window_s=300)
    assert {f.delay_s for f in facts.flows} == {30e-6}


def test_what_is_recorded_of_a_part_is_computed() -> None:
    """The rules run for one of two clusters."""
    facts, _ = ask({"recorded_delay": all_flows(20e-6)[:100], "delay": all_flows(30e-6)})
    assert {f.delay_s for f in facts.flows} == {30e-6}


def test_floors_of_slow_flows_and_of_as_many_others() -> None:
    """Of two hundred hosts the two of the slow flow are asked, and sixteen quick ones beside them."""
    _, server = ask({"recorded_delay": all_flows(20e-6, slow=77)})
    asked = set(re.findall(r"h\d{3}", server.texts["floor"]))
    assert {"h076", "h077"} <= asked
    assert len(asked) == 18
    assert set(server.floors) == {1e6 - 3600, 1e6}
    # Where all are slow, the slowest are.
    _, server = ask({"recorded_delay": all_flows(90e-6, slow=77)})
    asked = set(re.findall(r"h\d{3}", server.texts["floor"]))
    assert {"h076", "h077"} <= asked
    assert len(asked) == 96


def test_exporters_are_listed_where_one_is_missing() -> None:
    """How many there are tells that all are; which one is not is asked then."""
    facts, server = ask({"recorded_delay": all_flows(20e-6)})
    assert {h.exporters for h in facts.hosts} == {frozenset(("mesh", "nic", "qp", "clocksync"))}
    assert not any("exporters" in names for names in server.requests)
    counted = [Sample({"daemon": name}, len(HOSTS) - float(name == "mesh")) for name in COMPONENTS]
    there = [
        Sample({"instance": host, "daemon": name}, 1.0)
        for host in HOSTS
        for name in COMPONENTS
        if (host, name) != ("h007", "mesh")
    ]
    answers = {"recorded_delay": all_flows(20e-6), "exporters_counted": counted, "exporters": there}
    facts, _ = ask(answers)
    assert [h.name for h in facts.hosts if "mesh" not in h.exporters] == ["h007"]


def test_questions_about_a_large_job_are_put_alone() -> None:
    """A union of their answers costs more than it saves; each answer is found all the same."""
    many = [Sample({"instance": f"n{number:03d}"}, 1.0) for number in range(300)]
    counted = [Sample({"daemon": name}, 300.0) for name in COMPONENTS]
    answers = {"recorded_delay": all_flows(20e-6), "processes": many, "exporters_counted": counted}
    facts, server = ask(answers)
    _, small = ask({"recorded_delay": all_flows(20e-6)})
    assert all(len(names) < 2 for names in server.requests)
    assert len(server.requests) > len(QUERIES) > len(small.requests)
    assert len(facts.flows) == len(HOSTS)
    assert {f.delay_s for f in facts.flows} == {20e-6}
    assert all("mesh" in h.exporters for h in facts.hosts)


def test_samples_cost_no_pass_of_the_garbage_collector() -> None:
    """Of a large job there are 200,000 of them."""
    assert not gc.is_tracked(Sample({"instance": "h0"}, 1.0))


def test_a_job_that_began_within_a_window_is_not_compared_by_rates() -> None:
    """Its counters did not grow in all of it: a rate over the window says that the job is quicker now than it was, or
    slower. What is known of each collective is compared all the same."""
    rates = {
        name: [Sample({"collective": "AllReduce"}, value)]
        for name, value in (("rate", 10.0), ("bytes", 2e10), ("busy", 0.5))
    }
    begun = {"recorded_delay": all_flows(20e-6), **rates}
    for started_s, whole in (
        (1e6 - 90_000, True),
        (1e6 - 3600 - 119, True),
        (1e6 - 3600 - 60, False),
        (1e6 - 60, False),
    ):
        facts, _ = ask({**begun, "started": [Sample({}, started_s)]})
        a = Analysis(facts)
        assert (facts.whole, a.pace, a.duration) == (whole, 1.0 if whole else None, 1.0)
        assert any("collectives a second are not compared" in line for line in facts.limits) != whole
    facts, _ = ask(begun)
    assert facts.whole


AT_S = 1e6


def scalar(value: float) -> list[Sample]:
    return [Sample({}, value)]


def seen(**answers: float) -> dict[str, list[Sample]]:
    """Of a job of which all is known, scraped each 15 s, with these answers in place of those of such a job."""
    return {"recorded_delay": all_flows(20e-6), "samples": scalar(8)} | {
        name: scalar(value) for name, value in answers.items()
    }


def test_a_job_that_has_ended_is_no_slow_one() -> None:
    """Its exporter still answers, and counters of ended processes stand still: a rate over the window is too low."""
    facts, _ = ask(seen(last_seen=AT_S - 60, exporter_seen=AT_S - 5))
    assert (facts.gone_s, facts.silent_s, facts.whole) == (AT_S - 60, None, False)
    answer = infer(facts)
    assert (answer.state, answer.causes) == ("ended", ())
    assert "1970-01-12 13:45:40 UTC: it has ended" in answer.headline


def test_what_nobody_has_seen_is_not_known() -> None:
    """Series that end before the window does, of exporters as well: Prometheus was away."""
    for silent_s in (30, 90):
        facts, _ = ask(seen(last_seen=AT_S - silent_s, exporter_seen=AT_S - silent_s, moved=0.0))
        assert (facts.gone_s, facts.silent_s, facts.whole) == (None, AT_S - silent_s, False)
        answer = infer(facts)
        assert (answer.state, answer.causes) == ("unknown", ())
        assert any(f"nothing is known of the last {silent_s} s" in line for line in answer.unknown)
    for late_s in (0, 14, 20):  # as scrapes are
        facts, _ = ask(seen(last_seen=AT_S - late_s, exporter_seen=AT_S - late_s))
        assert (facts.gone_s, facts.silent_s, facts.whole) == (None, None, True)


def test_a_job_that_was_started_again_is_not_compared_by_rates() -> None:
    """Whether its series begin within the window or its counters do."""
    for answers in (seen(first_seen=AT_S - 60), seen(restarts=1.0)):
        facts, _ = ask(answers)
        assert (facts.whole, facts.gone_s, facts.silent_s) == (False, None, None)
        assert any("are not compared" in line for line in facts.limits)


def test_series_that_are_there_twice_are_named() -> None:
    """Of replicas, of two clusters; and what is no series of the job at all."""
    facts, _ = ask(seen(copies=2, clusters=1))
    assert any("replicas that are not deduplicated" in line for line in facts.limits)
    facts, _ = ask(seen(copies=1))
    assert facts.limits == ()
    facts, _ = ask(seen() | {"samples": scalar(1)})
    assert any("fewer than two samples" in line for line in facts.limits)


def running(*clusters: str) -> list[Sample]:
    """The job's hosts, in these clusters by turns."""
    return [
        Sample({"instance": host, "cluster": clusters[n % len(clusters)]}, 1.0)
        for n, host in enumerate(HOSTS)
    ]


def test_jobs_of_one_name_in_two_clusters_are_not_one() -> None:
    """Unless who asks has named both."""
    with pytest.raises(UserError, match=r"2 clusters \(a, b\)"):
        ask(seen() | {"processes": running("a", "b")})
    facts, _ = ask(seen() | {"processes": running("a", "b")}, extra='cluster=~"a|b"')
    assert any("several clusters" in line for line in facts.limits)


class Elsewhere(Server):
    """Before, another cluster's job of the name ran on hosts of which one has a name of ours."""

    async def instant(self, query: str, at_s: float | None = None) -> list[Sample]:
        found = await super().instant(query, at_s)
        if at_s != AT_S and found and found[0].labels.get("cluster") == "a":
            return [Sample({"instance": host, "cluster": "b"}, 9.0) for host in (HOSTS[0], "other")]
        return found


def test_a_host_of_that_name_in_another_cluster_is_another_host() -> None:
    """All that is asked once the cluster is known is about it; what was asked before counts for it alone."""
    facts, server = ask(seen() | {"processes": running("a")}, kind=Elsewhere)
    assert facts.limits == ()
    assert [h.name for h in facts.hosts] == list(HOSTS)
    assert {h.processes_before for h in facts.hosts} == {None}
    for name in ("connected", "drops", "others_rate", "rate"):
        assert 'cluster="a"' in server.texts[name]
    facts, server = ask(seen())
    assert "cluster=" not in server.texts["connected"]


class Limited(Server):
    """Takes 900 bytes, as VictoriaMetrics refuses more."""

    async def instant(self, query: str, at_s: float | None = None) -> list[Sample]:
        if len(query.encode()) > 900:
            raise RefusedError(
                f"too long query; got {len(query)} bytes; mustn't exceed `-search.maxQueryLen=900` bytes"
            )
        asked = re.search(r'(?:instance|Hostname)=~"([^"]*)"', query)
        if asked is None:
            return await super().instant(query, at_s)
        some = asked[1].split("|")
        self.divided += 1
        found = await super().instant(query.replace(asked[1], "|".join(HOSTS)), at_s)
        if found and "daemon" in found[0].labels:
            return [Sample(dict(s.labels), float(len(some))) for s in found]
        return [Sample(dict(s.labels), s.value) for s in found if s.labels.get("instance") in some]

    divided = 0


def test_what_is_too_long_is_asked_of_some_hosts_at_a_time() -> None:
    """With the same facts as from a backend that takes it as it is; counts of hosts are added."""
    drops = [Sample({"instance": host, "device": "rail0"}, float(n)) for n, host in enumerate(HOSTS)]
    delays = {"recorded_delay": all_flows(20e-6), "drops": drops, "connected": drops}
    whole, _ = ask(dict(delays))
    some, server = ask(dict(delays), kind=Limited)
    assert isinstance(server, Limited)
    assert server.divided > 50
    assert some.nics == whole.nics
    assert some.hosts == whole.hosts
    assert all("mesh" in host.exporters for host in some.hosts)


def test_a_question_is_divided_within_its_bound() -> None:
    """Each part is; together they name each host once. What cannot be divided is left whole."""
    hosts = [f"gpu-{number:04d}.example.org" for number in range(1000)]
    text = Scope("job", tuple(hosts)).fill("a{{hosts}} / b{{hosts}} and c{{job}}")
    divided = parts("", text, hosts, MOST_BYTES)
    assert divided is not None
    assert max(len(part.encode()) for part in divided) <= MOST_BYTES
    assert sorted(re.findall(r"gpu-\d{4}", "".join(divided))) == sorted([host[:8] for host in hosts] * 2)
    assert len(divided) == -(-len(text) // MOST_BYTES)
    assert parts("", "c", hosts, MOST_BYTES) is None
    assert parts("", text, hosts, 100) is None
    assert parts("rate", text, hosts, MOST_BYTES) is None
    assert most_bytes("the answer took too long") is None
    assert most_bytes("mustn't exceed `-search.maxQueryLen=9` bytes") == 9


def test_parts_of_an_answer_make_the_whole() -> None:
    """Those of all hosts are listed, counts are added, of moments the first or the last holds."""
    one, other = [Sample({"x": "1"}, 3.0)], [Sample({"x": "1"}, 5.0), Sample({"x": "2"}, 1.0)]

    def values(name: str) -> list[float]:
        return [s.value for s in together(name, (one, other))]

    assert values("connected") == [3.0, 5.0, 1.0]
    assert values("exporters_counted") == [8.0, 1.0]
    assert (values("first_seen"), values("last_seen")) == ([3.0, 1.0], [5.0, 1.0])


def test_only_questions_by_host_are_divided_as_lists() -> None:
    """An aggregate over all hosts of parts is none over all of them."""
    for query in (PROCESSES, *QUERIES):
        over_hosts = any(f"{{{name}}}" in query.text for name in ("job", "hosts", "gpu_hosts"))
        by_host = all(
            re.search(r"\b(instance|Hostname)\b", by) for by in re.findall(r"by \(([^)]*)\)", query.text)
        )
        aggregated = re.search(
            r"(?<!_)\b(sum|min|max|avg|count|min_over_time) ?\(", query.text.split(" by ")[0]
        )
        if over_hosts and (aggregated or not by_host):
            assert query.parts != "list", query.name


def test_hosts_that_a_job_is_narrowed_to_are_divided_as_well() -> None:
    """Already in the first question; the mean over all hosts is unknown then."""
    scope = Scope("train-7", only=HOSTS)
    jobs = [Sample({"instance": host}, 1.0) for host in HOSTS]
    server = Limited({"processes": jobs, "rate": scalar(2.0), **seen()}, scope)
    facts, _ = asyncio.run(gather(server, scope, Times(AT_S, AT_S - 3600)))
    assert len(facts.hosts) == len(HOSTS)
    assert any(reason.startswith("rate (") for reason in facts.unanswered)


def test_an_answer_that_is_not_whole_lowers_confidence() -> None:
    """Thanos without one of its stores: which hosts are missing is not known."""
    answers = {
        "processes": [Sample({"instance": host}, 1.0) for host in HOSTS],
        **seen(),
        "disconnects": [Sample({"instance": "h001", "device": "rail0"}, 3.0)],
        "connected": [Sample({"instance": "h001", "device": "rail0", "network": "r"}, 0.0)],
    }
    server = Server(answers, Scope("train-7"))
    server.warnings = {"store 10.0.0.1 is away": None}
    facts, _ = asyncio.run(gather(server, Scope("train-7"), Times(AT_S, AT_S - 3600)))
    assert facts.partial
    assert "the backend warns: store 10.0.0.1 is away" in infer(facts).unknown
    sure = infer(replace(facts, partial=False)).causes[0].finding.confidence
    assert infer(facts).causes[0].finding.confidence < 0.9 * sure


def test_ranks_inside_a_collective_that_none_has_ended_for_a_while_stand_still() -> None:
    """Before a window has passed, without any request that waits: of a job whose transport is not ours."""
    ranks = [{"instance": f"h{n:03d}", "communicator": "c", "rank": str(n)} for n in range(4)]

    def job(late: int | None, rate: float, moved: float, least: float | None = 2.0) -> Facts:
        answers = {
            "rank_operations": [Sample(labels, 1000.0) for labels in ranks],
            "rank_in_progress": [Sample(labels, float(n != late)) for n, labels in enumerate(ranks)],
            "rank_rate": [Sample(labels, rate) for labels in ranks],
            "rate": [Sample({"collective": "AllReduce"}, rate)],
        }
        steady = {} if least is None else {"moved_least": scalar(least)}
        return ask({**seen(moved=moved), **steady, **answers})[0]

    stuck = infer(job(2, 5.0, 0.0))
    assert (stuck.state, stuck.causes[0].finding.where) == ("stalled", "rank 2 on h002")
    assert "no collective has ended for 30 s" in stuck.causes[0].finding.evidence[0].text
    assert "compute" not in {r.finding.cause for r in infer(job(None, 5.0, 0.0)).causes}
    assert infer(job(2, 5.0, 1.0)).state != "stalled"
    # Seldom collectives are none that are overdue, nor those of a job that made such pauses before, as where they come
    # at the end of each long step; of which that is not known, a whole window has to pass.
    assert infer(job(2, 0.05, 0.0)).state != "stalled"
    assert infer(job(2, 5.0, 0.0, 0.0)).state != "stalled"
    assert infer(job(2, 5.0, 0.0, None)).state != "stalled"


def test_since_when_is_known_of_a_job_whose_collectives_are_quick() -> None:
    """One that hangs, or whose ranks are long outside of them, has the bandwidth that it had: the history is that of
    how many there were."""
    asked = []

    class Past(Server):
        async def history(self, query: str, *_: object) -> list[tuple[float, float]]:  # type: ignore[override]
            asked.append(query)
            return [(AT_S - 3600 + 60 * n, 10.0 if n < 40 else 2.0) for n in range(60)]

    def answer(rate: float, busy: float) -> Answer:
        def of(name: str, now: float, before: float) -> dict[str, list[Sample]]:
            return {name: [Sample({"collective": "AllReduce", "was": str(before)}, now)]}

        answers = {
            "processes": [Sample({"instance": host}, 1.0) for host in HOSTS],
            "sent": [Sample(sent(n), 1e9) for n in range(len(HOSTS))],
            **seen(),
            **of("rate", rate, 10.0),
            **of("bytes", rate * 2e9, 2e10),
            **of("busy", busy, 0.5),
        }

        class Before(Past):
            async def instant(self, query: str, at_s: float | None = None) -> list[Sample]:
                found = await super().instant(query, at_s)
                return found if at_s == AT_S else [replace_value(s) for s in found]

        def replace_value(s: Sample) -> Sample:
            return Sample(s.labels, float(s.labels["was"])) if "was" in s.labels else s

        facts, _ = asyncio.run(
            gather(Before(answers, Scope("train-7")), Scope("train-7"), Times(AT_S, AT_S - 3600))
        )
        return infer(facts)

    idle = answer(5.0, 0.25)
    assert (idle.state, idle.since_s) == ("slow", AT_S - 3600 + 60 * 40)
    assert "operations_total" in asked[-1]
    slow = answer(5.0, 0.5)
    assert (slow.state, slow.since_s) == ("slow", AT_S - 3600 + 60 * 40)
    assert "busy_seconds_total" in asked[-1]


def test_no_garbage_is_searched_while_an_answer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large job that is a quarter of the time; afterwards it is as it was."""
    seen: list[bool] = []

    def assemble(*_: object) -> Facts:
        seen.append(gc.isenabled())
        return Facts("job", 0.0)

    def analysis(facts: Facts) -> Analysis:
        seen.append(gc.isenabled())
        return Analysis(facts)

    monkeypatch.setattr(gather_module, "assemble", assemble)
    monkeypatch.setattr(infer_module, "Analysis", analysis)
    infer(ask({})[0])
    assert (set(seen), gc.isenabled()) == ({False}, True)
