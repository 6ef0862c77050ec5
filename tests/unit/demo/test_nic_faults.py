"""Where the demo lets another job's data meet the ring's: by the paths that the lanes really have."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.lab.demo import nic_faults
from fabricpulse.lab.demo.nic_faults import NicFaults

FLOW, BACK = ("h1-rail0", "h2-rail0"), ("h3-rail0", "h0-rail0")


def lane(number: int, port: int, sent: int, device: str = "rail0") -> dict[str, Any]:
    return {
        "lane": number, "device": device, "peer_device": device, "entropy": port, "sent_bytes": sent,
        "queue_pair": port << 16 | 9,
    }  # fmt: skip


def connection(peer: str, *lanes: dict[str, Any], direction: str = "send") -> dict[str, Any]:
    return {"connection": f"to-{peer}", "direction": direction, "peer": peer, "lanes": list(lanes)}


class Jobs:
    """A lab of which the spine of a packet is the parity of its ports; what the jobs' sockets say and are asked."""

    def __init__(self, folder: Path, status: dict[str, list[dict[str, Any]]]) -> None:
        self.folder, self.status = folder, status
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.loads: list[tuple[Any, ...]] = []
        self.refusal: dict[str, Any] = {}
        self.spines = 2
        for host in status:
            (folder / host / "plugin").mkdir(parents=True)
            (folder / host / "plugin" / "1-1.sock").touch()

    def host(self, name: str) -> Any:
        return SimpleNamespace(run_dir=self.folder / name)

    def path(self, source: str, destination: str, port: int, to: int, protocol: str) -> str:
        assert protocol == "tcp"
        assert {9} & {port, to}, "one end is where the lane was accepted"
        return f"spine{(port + to) % self.spines}"

    def load(self, *order: Any, path: str | None) -> Any:
        self.loads.append((*order, path))
        return SimpleNamespace(undo=lambda: None)

    def client(self, path: Path) -> Any:
        host = path.parents[1].name

        class Client:
            def __enter__(client) -> Any:  # noqa: N805
                return client

            def __exit__(client, *_: object) -> None:  # noqa: N805
                pass

            def call(client, message: dict[str, Any]) -> dict[str, Any]:  # noqa: N805
                if message["op"] == "status":
                    return {"connections": self.status[host]}
                self.asked.append((host, message))
                return {"ok": not self.refusal, "error": self.refusal}

        return Client()


def played(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    refusal: dict[str, Any] | None = None,
    spines: int = 2,
    **status: list[dict[str, Any]],
) -> Jobs:
    jobs = Jobs(folder, status)
    jobs.refusal, jobs.spines = refusal or {}, spines
    monkeypatch.setattr(nic_faults, "ControlClient", jobs.client)
    NicFaults(cast(Any, jobs)).load("h0-rail0", "h3-rail0", 60.0, FLOW, BACK)
    return jobs


@pytest.mark.parametrize(("port", "is_moved"), [(21, True), (22, False)])
def test_the_load_meets_the_flow_and_not_the_way_back(
    port: int, is_moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the spine of the lane that has carried most; what acknowledges the ring's way back gets another one, if it is
    on that, by a port that leads there. Idle lanes, other peers and rails, and what a host receives stay out of it."""
    jobs = played(
        tmp_path,
        monkeypatch,
        h1=[
            connection("h2", lane(0, 31, 900), lane(1, 30, 100), lane(2, 30, 5000, "rail1")),
            connection("h0", lane(0, 30, 9000), direction="receive"),
        ],
        h3=[connection("h0", lane(0, port, 700), lane(1, 21, 0)), connection("h2", lane(0, 21, 800))],
    )
    assert jobs.loads == [("h0-rail0", "h3-rail0", 60.0, "spine0")]
    assert [(host, order["op"], order["connection"], order["lane"]) for host, order in jobs.asked] == (
        [("h3", "lane.repath", "to-h0", 0)] if is_moved else []
    )
    assert all(jobs.path(*BACK, 9, order["entropy"], "tcp") != "spine0" for _, order in jobs.asked)


def test_without_a_flow_there_is_nothing_to_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load on any path would be another scenario."""
    with pytest.raises(UserError, match="no job sends from h1-rail0 to h2-rail0"):
        played(tmp_path, monkeypatch, h1=[connection("h2", lane(0, 31, 0))], h3=[])


def test_each_lane_gets_a_port_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an operation of its own: of two with one id a process carries out one, and two lanes with one port are the
    same flow. Ports that lanes have already are not free."""
    lanes = [lane(0, 21, 700), lane(1, 23, 700), lane(2, 20_001, 700)]
    lanes[2]["queue_pair"] = 20_001 << 16 | 9
    jobs = played(
        tmp_path,
        monkeypatch,
        h1=[connection("h2", lane(0, 31, 900))],
        h3=[connection("h0", *lanes), connection("h0", lane(3, 20_000, 0), lane(0, 25, 9))],
    )
    orders = [order for _, order in jobs.asked]
    assert [order["lane"] for order in orders] == [0, 1, 2, 0]
    ports = [order["entropy"] for order in orders]
    assert len(set(ports)) == 4
    assert not {20_000, 20_001} & set(ports)
    assert len({order["op_id"] for order in orders}) == 4
    assert all(len(order["op_id"]) <= 128 for order in orders)


@pytest.mark.parametrize(
    ("refusal", "spines", "text"),
    [
        ({"code": "unknown_lane", "message": "x"}, 2, "no other path: .*unknown_lane"),
        ({}, 1, "no source port leads from h3-rail0"),
    ],
    ids=["refused", "one spine"],
)
def test_a_way_back_that_stays_is_an_error(
    refusal: dict[str, Any], spines: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both flows of the ring would be slow: another scenario."""
    with pytest.raises(UserError, match=text):
        played(
            tmp_path,
            monkeypatch,
            refusal=refusal,
            spines=spines,
            h1=[connection("h2", lane(0, 31, 900))],
            h3=[connection("h0", lane(0, 21, 700))],
        )
