"""The agent's side of the control sockets."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.control_server import ControlServer

from fabricpulse.remediation.node.journal import NodeJournal
from fabricpulse.remediation.node.mesh import MeshNics, parse_mesh
from fabricpulse.remediation.node.plugins import Plugins
from fabricpulse.remediation.node.survey import Survey, nics_of, traffic_outcome
from fabricpulse.remediation.protocol import DesiredNic

AVOID = DesiredNic("rail0", "avoid", 10, "op-10")
RESTORE = DesiredNic("rail0", "in_service", 11, "op-11")


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[Plugins]:
    made = Plugins(tmp_path, call_timeout_s=0.3, verify_timeout_s=0.3)
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    made = ControlServer(tmp_path, ["rail0", "rail1"])
    yield made
    made.close()


def test_apply_and_verify(plugins, server):
    """Applied means that the process shows it; asked again it changes nothing."""
    for _ in range(3):
        result = plugins.apply(AVOID)
        assert (result.outcome, result.processes) == ("applied", 1)
    assert server.effects == [("op-10", "nic.avoid", "rail0")]
    assert plugins.apply(RESTORE).outcome == "applied"
    assert plugins.survey().devices() == {"rail0": True, "rail1": True}
    assert plugins.calls["duplicate"] == 2


def test_a_process_that_does_not_use_the_nic_counts_as_done(plugins, tmp_path):
    """It has nothing to do."""
    server = ControlServer(tmp_path, ["rail1"])
    result = plugins.apply(AVOID)
    server.close()
    assert (result.outcome, result.processes) == ("applied", 0)


def test_no_processes(plugins):
    """A host without jobs is soon in line."""
    assert plugins.apply(AVOID).outcome == "applied"
    assert plugins.survey() == Survey({})


def test_a_refusal_carries_the_plugins_words(plugins, server):
    """The sentence reaches the journal."""
    server.link["rail1"] = "down"
    result = plugins.apply(AVOID)
    assert (result.outcome, "no other healthy lane" in result.message) == ("refused", True)


def test_a_promise_that_is_not_kept_is_a_failure(plugins, server, monkeypatch):
    """`ok` is not enough: the status must show it."""
    monkeypatch.setattr(server, "_change", lambda request: {"ok": True, "op_id": request["op_id"]})
    result = plugins.apply(AVOID)
    assert (result.outcome, "not shown within" in result.message) == ("failed", True)


def test_a_process_that_hangs_alone_is_a_failure(plugins, server):
    """Nobody followed, so nothing was done."""
    server.hang.set()
    result = plugins.apply(AVOID)
    assert (result.outcome, "timed out" in result.message) == ("failed", True)


def test_a_dead_processs_socket_is_passed_over(plugins, tmp_path):
    """kill -9 leaves a socket behind."""
    import socket

    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.bind(str(tmp_path / "999999999.sock"))
    left.close()
    assert plugins.apply(AVOID).outcome == "applied"


def test_only_sockets_count(plugins, tmp_path):
    """A file or a link with the name of a socket is not opened."""
    (tmp_path / "1.sock").write_text("")
    (tmp_path / "2.sock").symlink_to("/run/elsewhere")
    assert plugins.present() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the socket another owner")
def test_a_squatted_socket_is_refused(plugins, server):
    """A server that is neither root nor the owner of the file is not believed."""
    # Root is the server here, which may serve anybody's; so the check is made on the refusal of the other direction.
    os.chown(server.path, 12345, 12345)
    assert plugins.apply(AVOID).outcome == "applied"


def status(moved: int, waiting: int = 0, avoided: bool = True) -> dict[str, object]:
    return {
        "devices": [
            {
                "device": "rail0",
                "link": "up",
                "avoided": avoided,
                "sent_bytes": 7 * moved,
                "received_bytes": 0,
            },
            {"device": "rail1", "link": "up", "avoided": False, "sent_bytes": 0, "received_bytes": moved},
        ],
        "waiting": waiting,
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (status(1), status(2, 3), "moved"),
        (status(1), status(1), "idle"),
        (status(1), status(1, 1), "stalled"),
    ],
)
def test_traffic_outcome(before, after, expected):
    """Bytes on other NICs count; where none moved, requests that our lanes hold up make it a stall."""
    assert traffic_outcome(Survey({"1": before}), Survey({"1": after}), "rail0") == expected


def test_last_nic_of():
    """The process that has no other NIC is named."""
    only = {"devices": [{"device": "rail0", "link": "up", "avoided": False}]}
    assert Survey({"1": status(1), "2": only}).last_nic_of("rail0") == "2"
    assert Survey({"1": status(1)}).last_nic_of("rail0") == ""


@pytest.mark.parametrize(
    "answer", [{}, {"devices": 7}, {"devices": [7, {}, {"device": 3}, {"device": None}]}]
)
def test_nonsense_from_a_process_is_no_nic(answer):
    """A process that answers rubbish is not acted on."""
    assert nics_of(answer) == {}
    assert traffic_outcome(Survey({"1": answer}), Survey({"1": answer}), "rail0") == "idle"


def test_journal_keeps_the_newest_and_never_goes_back(tmp_path):
    """The high-water mark of generations and epochs survives."""
    journal = NodeJournal(tmp_path / "n.db")
    journal.accept(5, [AVOID, DesiredNic("rail1", "avoid", 7, "op-7")])
    journal.accept(6, [RESTORE])
    journal.accept(6, [DesiredNic("rail0", "avoid", 9, "op-9")])
    journal.close()
    again = NodeJournal(tmp_path / "n.db")
    assert again.epoch() == 6
    assert again.desired() == {"rail0": RESTORE, "rail1": DesiredNic("rail1", "avoid", 7, "op-7")}
    again.close()


def test_nics_of_the_mesh():
    """Read from its exposition; what is not one says nothing."""
    text = (
        "# TYPE fabricpulse_nic_connected gauge\n"
        'fabricpulse_nic_connected{device="rail0",network="rail0"} 1\n'
        'fabricpulse_nic_connected{device="rail1",network="rail1"} 0\n'
        'fabricpulse_nic_disconnects_total{device="rail1"} 5\n'
    )
    assert parse_mesh(text) == MeshNics({"rail0": True, "rail1": False}, {"rail1": 5.0})
    assert parse_mesh("fabricpulse_nic_connected{{{") == MeshNics()
    flood = "\n".join(f'fabricpulse_nic_connected{{device="d{i}"}} 1' for i in range(10_000))
    assert len(parse_mesh(flood).connected) == 256
