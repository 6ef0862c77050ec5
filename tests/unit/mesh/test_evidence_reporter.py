"""What the reporter sends again and again, with a coordinator that answers as the test says."""

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
from tests.unit.mesh.synthetic import view_and_snapshot

from fabricpulse.diagnosis.wire.messages import EvidenceReply, EvidenceReport
from fabricpulse.diagnosis.wire.queue_pairs import QueuePairPath
from fabricpulse.mesh import evidence
from fabricpulse.mesh.config import MeshConfig
from fabricpulse.mesh.evidence import EvidenceReporter
from fabricpulse.mesh.lldp_leaves import Leaves
from fabricpulse.mesh.rdma_plane.reported_paths import RETRY_S

PATHS = {
    path.key: path
    for path in (
        QueuePairPath("rail0", "h1", "rail0", 0xC000 + n, (1,), ("train-7",), ("leaf",)) for n in range(3)
    )
}


@pytest.fixture
def played(monkeypatch):
    """Reports of a minute and a half, one round a second of the reporter's; answer : of the coordinator to each."""

    def played(
        answer: Callable[[int, EvidenceReport], EvidenceReply], leaves: Callable[[], Leaves] = tuple
    ) -> list[EvidenceReport]:
        now = [0.0]
        reports: list[EvidenceReport] = []
        decoder = msgspec.msgpack.Decoder(EvidenceReport)

        async def a_round(seconds: float) -> None:
            now[0] += seconds
            if now[0] > 1.5 * RETRY_S:
                raise asyncio.CancelledError

        class Client:
            """The coordinator's end."""

            def __init__(self, *_: object, **__: object) -> None:
                pass

            async def __aenter__(self) -> "Client":
                return self

            async def __aexit__(self, *_: object) -> None:
                pass

            @asynccontextmanager
            async def post(self, _: str, data: bytes):
                reports.append(decoder.decode(data))
                reply = answer(len(reports), reports[-1])
                yield SimpleNamespace(status=200, body=msgspec.msgpack.encode(reply))

        async def read_body(response: SimpleNamespace) -> bytes:
            return bytes(response.body)

        monkeypatch.setattr(evidence, "HttpClient", Client)
        monkeypatch.setattr(evidence, "read_body", read_body)
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        monkeypatch.setattr(asyncio, "sleep", a_round)
        state = view_and_snapshot()
        reporter = EvidenceReporter(
            "http://c:9614", MeshConfig(), lambda: state, dict, None, lambda: PATHS, leaves
        )
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(reporter.run())
        return reports

    return played


def reported(reports: list[EvidenceReport]) -> list[list[int]]:
    """Source ports of the queue pairs in each report that has some."""
    return [[path.port for path in report.queue_pairs] for report in reports if report.queue_pairs]


def test_a_path_that_the_coordinator_has_no_room_for_is_sent_again(played) -> None:
    """By the number that the reply gives, after a minute, and the others are not."""
    refused = (1,)
    reports = played(lambda number, report: EvidenceReply(False, refused_queue_pairs=refused))
    every = [0xC000, 0xC001, 0xC002]
    assert reported(reports) == [every, every[1:2]]


def test_a_coordinator_that_was_restarted_gets_everything(played) -> None:
    """It has taken nothing of the report that it answers by asking for the edges."""
    reports = played(lambda number, report: EvidenceReply(number in (1, 4)))
    assert [report.edges is None for report in reports[:6]] == [False, False, True, True, False, True]
    assert [len(report.queue_pairs) for report in reports[:6]] == [3, 3, 0, 0, 3, 0]


def test_leaves_are_reported_when_they_change(played) -> None:
    """Once each, and again to a coordinator that was restarted."""
    answers = iter(((), (), (("eth0", "leaf1"),), *(20 * ((("eth0", "leaf2"),),))))
    last: list[Leaves] = [()]

    def leaves() -> Leaves:
        last[0] = next(answers, last[0])
        return last[0]

    reports = played(lambda number, report: EvidenceReply(number == 6), leaves)
    seen = [report.leaves for report in reports if report.leaves is not None]
    assert seen == [(("eth0", "leaf1"),), (("eth0", "leaf2"),), (("eth0", "leaf2"),)]
