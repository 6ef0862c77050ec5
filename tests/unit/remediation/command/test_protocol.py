"""Every number and text of a report has a bound, and what a process claims is cut to it."""

import time

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.unit.remediation.world import World

from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.journal import NodeJournal
from fabricpulse.remediation.node.receiver_client import ReceiverClient, ReceiverError
from fabricpulse.remediation.node.report_size import fitting
from fabricpulse.remediation.node.survey import Survey, bytes_elsewhere, nics_of
from fabricpulse.remediation.protocol import (
    MAX_GENERATION,
    MAX_HELD_GENERATION,
    MAX_REPORT_BYTES,
    DesiredNic,
    DesiredState,
    HeldNic,
    LaneSample,
    Report,
    Result,
)
from fabricpulse.remediation.receiver.state.model import Held
from fabricpulse.remediation.receiver.web.report_decoding import decode_report

LONG = "x" * 5000


LANE = ["1", "0" * 16, 0, "job", "rail0", 40_000, 1000, 1.0, 1.0, -1.0, 0, 0, 0.0]


def test_a_lane_within_bounds_is_read():
    """What the tests below make wrong is right as it stands."""
    report = msgspec.json.decode(msgspec.json.encode({"lanes": [LANE] * 1024}), type=Report)
    assert report.lanes[0].device == "rail0"


@pytest.mark.parametrize(
    "report",
    [
        {"held": {"rail0": {"desired": "avoid", "generation": 10**30}}},
        {"held": {"rail0": {"desired": "avoid", "generation": MAX_HELD_GENERATION + 1}}},
        {"held": {"rail0": {"desired": "avoid", "generation": -1}}},
        {"held": {"rail0": {"desired": "avoid", "generation": 1.5}}},
        {"processes": 10**30},
        {"processes": -1},
        {"devices": {LONG: True}},
        {"devices": {"": True}},
        {"devices": {f"d{i}": True for i in range(257)}},
        {"connected": {f"d{i}": True for i in range(257)}},
        {"health": {"rail0": "excellent"}},
        {"results": [{"op_id": LONG, "outcome": "applied"}]},
        {"results": [{"op_id": "o", "outcome": "applied", "message": LONG}]},
        {"results": [{"op_id": "o", "outcome": "applied"}] * 257},
        {"lanes": [[*LANE[:8], 1e300, *LANE[9:]]]},
        {"lanes": [["../1", *LANE[1:]]]},
        {"lanes": [LANE[:4]]},
        {"lanes": [LANE] * 1025},
    ],
)
def test_a_report_out_of_bounds_is_refused(report):
    """One forged report with a generation of 10**30 ended the agent, also after both sides had restarted."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(report), type=Report)


@pytest.mark.parametrize(
    "report",
    [
        {"processes": -1, "health": {"rail0": "excellent"}},
        {"results": [{"op_id": LONG, "outcome": "applied", "traffic": "new"}]},
        {"results": [{"op_id": "o", "outcome": 7}]},
        {"results": [["o", "applied"]]},
        {"health": ["new"]},
        ["new"],
        "new",
    ],
)
def test_a_report_of_a_newer_agent_is_not_let_through_its_bounds(report):
    """What makes it new does not excuse the rest."""
    with pytest.raises(msgspec.ValidationError):
        decode_report(msgspec.json.encode(report))


def test_what_a_newer_agent_says_is_unknown_not_refused():
    """Its host would count as lost. What is new is left out, and what is known counts."""
    report = decode_report(
        msgspec.json.encode({
            "processes": 2,
            "results": [
                {"op_id": "a", "outcome": "applied", "traffic": "partly_stalled", "since": 7},
                {"op_id": "b", "outcome": "applied", "traffic": "crawling"},
                {"op_id": "c", "outcome": "half_applied"},
            ],
            "health": {"rail0": "healthy", "rail1": "degraded"},
            "held": {
                "rail0": {"desired": "avoid", "generation": 7},
                "rail1": {"desired": "slow", "generation": 7},
            },
            "mood": {"good": True},
        })
    )  # fmt: skip
    assert report == Report(
        processes=2,
        results=[Result("a", "applied", traffic="partly_stalled"), Result("b", "applied")],
        health={"rail0": "healthy"},
        held={"rail0": HeldNic("avoid", 7)},
    )


@pytest.mark.parametrize("is_older", [True, False])
async def test_an_agent_says_to_an_older_receiver_what_that_knows(is_older):
    """One that takes a report in the values of the release before only, until it has started anew. To one of this
    release, which refuses a report for what else is wrong with it, jobs of one user stay those of one user."""
    seen = []

    async def report(request: web.Request) -> web.Response:
        said = await request.json()
        seen.append(traffic := said["results"][0]["traffic"])
        is_known = traffic == "stalled" if is_older else said["processes"] >= 0
        return web.Response(status=200 if is_known else 400)

    async def desired(_: web.Request) -> web.Response:
        state = DesiredState("h0", len(seen), "", [], time.time() + 60)
        return web.json_response({"payload": msgspec.json.encode(state).decode()})

    app = web.Application()
    app.router.add_post("/api/v1/agents/h0/report", report)
    app.router.add_get("/api/v1/agents/h0/desired", desired)
    async with TestServer(app) as server:
        client = ReceiverClient(NodeConfig(host="h0", receiver=str(server.make_url("")).rstrip("/")))
        result = Report(results=[Result("a", "applied", traffic="partly_stalled")])
        try:
            if not is_older:
                with pytest.raises(ReceiverError, match="400"):
                    await client.report(msgspec.structs.replace(result, processes=-1))
                seen.clear()
            await client.report(result)
            await client.report(result)
            await client.fetch_desired("")
            await client.report(result)
        finally:
            await client.close()
    both = ["partly_stalled", "stalled"]
    assert seen == ([*both, "stalled", *both] if is_older else ["partly_stalled"] * 3)


def test_the_greatest_generation_of_a_report_harms_nobody(tmp_path):
    """The receiver takes it over and decides on; the agent journals what follows, and so does a control socket."""
    world = World()
    world.held["h0/rail0"] = Held("avoid", MAX_HELD_GENERATION)
    world.restart()
    world.tick(0)
    world.tick(11)
    (action,) = world.pending()
    assert action.action == "nic.restore"
    assert MAX_HELD_GENERATION < action.generation < MAX_GENERATION
    nic = DesiredNic("rail0", action.desired, action.generation, action.op_id)
    desired = DesiredState("h0", 1, "v", [nic], 60.0)
    assert msgspec.json.decode(msgspec.json.encode(desired), type=DesiredState) == desired
    journal = NodeJournal(tmp_path / "n.db")
    journal.accept(1, [nic], 0.0)
    assert journal.desired() == {"rail0": nic}
    journal.close()


def test_a_report_is_never_too_large_for_the_receiver():
    """Names of control characters take six bytes each: a file of any user made each report of the host too large."""
    text = "\x01" * 128
    lane = LaneSample("1", "f" * 16, 1, text, text[:32], 2**32, 2**32, 1e15 / 3, 1e15 / 3, 1e6, 2**53, 2**53)
    results = [Result(f"h/rail#{n}", "failed", 0, text * 4) for n in range(256)]
    report = Report(processes=3, lanes=[lane] * 1024, results=results)
    assert len(msgspec.json.encode(report)) > MAX_REPORT_BYTES
    sent = fitting(report)
    assert len(msgspec.json.encode(sent)) <= MAX_REPORT_BYTES
    assert (sent.processes, sent.results, len(sent.lanes)) == (3, results, 128)
    long = [msgspec.structs.replace(result, message=text * 15) for result in results]
    bare = fitting(Report(results=long))
    assert [result.op_id for result in bare.results] == [result.op_id for result in results]
    assert len(msgspec.json.encode(bare)) <= MAX_REPORT_BYTES
    assert fitting(Report(lanes=[lane])) == Report(lanes=[lane])


def test_what_a_process_claims_is_cut():
    """Absurd answers of a control socket never make a report that the receiver refuses."""
    flood = {"devices": [{"device": f"d{i}", "link": "up", "avoided": False} for i in range(10_000)]}
    assert len(nics_of(flood)) == 64
    many = Survey({str(i): {"devices": [{"device": f"d{i}-{j}"} for j in range(60)]} for i in range(100)})
    assert len(many.devices()) == len(many.links()) == 128
    own = {"devices": [{"device": "rail0"}, {"device": "veth0"}]}
    claimed = Survey({**many.processes, "job": own}, {"veth0": 1, "rail0": 0})
    assert list(claimed.devices())[:2] == ["rail0", "veth0"], (
        "invented NICs push out none that the kernel has"
    )
    assert len(claimed.devices()) == len(claimed.links()) == 128
    for name in (LONG, "", "a/b", "a\nb", 7, None, "\x1b[2J"):
        assert nics_of({"devices": [{"device": name}]}) == {}
    for count in (10**30, -1, 1.5, "9", None, True):
        status = {"devices": [{"device": "rail1", "sent_bytes": count, "received_bytes": 0}]}
        assert bytes_elsewhere(status, "rail0") in (0, 1)
