"""The tree of the fabric from the delays that hosts report, as a real coordinator tells it and the command shows it."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from tests.fixtures.mesh.distant_nics import Fabric, Plan
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import UserError
from fabricpulse.diagnosis.wire.messages import (
    EVIDENCE_PATH,
    PROTOCOL,
    EdgeName,
    EvidenceReply,
    EvidenceReport,
    HostFacts,
    LeastDelay,
    pack_delays,
)
from fabricpulse.mesh.command import command
from fabricpulse.placement.places import PlacesFile, declarations, places

HOSTS = 18


class Reporters:
    """Eighteen hosts below three leaves, each a peer of all others, that report their delays four times a second.

    silent : they report, but no delays. true : the hosts of each leaf.
    """

    def __init__(self, url: str) -> None:
        # One for all: under load new ones take longer than a slot.
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        fabric = Fabric(Plan(hosts=HOSTS, per_leaf=6, leaves_per_pod=0, congested=0.0), 2)
        self.names = [nic.host for nic in fabric.nics]
        self.true = self.groups(dict(zip(self.names, map(str, fabric.leaf), strict=True)))
        a, b = np.triu_indices(HOSTS, 1)
        floor, _ = fabric.floor(a, b)
        self._two_way = dict(zip(zip(a.tolist(), b.tolist(), strict=True), floor.tolist(), strict=True))
        self.silent = False
        self._known: set[int] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @staticmethod
    def groups(leaf_of: dict[str, str]) -> set[frozenset[str]]:
        """Which hosts are below one leaf."""
        return {frozenset(h for h in leaf_of if leaf_of[h] == leaf) for leaf in set(leaf_of.values())}

    def __enter__(self) -> "Reporters":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._end.wait(0.25):
            for host in range(HOSTS):
                self.report(host)

    def report(self, host: int) -> None:
        peers = [peer for peer in range(HOSTS) if peer != host]
        delays = []
        for edge, peer in enumerate(peers):
            # Each clock is wrong by 10 us times the number of its host.
            one_way = self._two_way[min(host, peer), max(host, peer)] / 2 + 10_000 * (host - peer)
            delays.append(LeastDelay(edge, 500, round(one_way)))
        edges = tuple(EdgeName("eth0", self.names[peer], "eth0") for peer in peers)
        report = EvidenceReport(
            *(PROTOCOL, self.names[host], 1, 8, 135.0, 2.0, b"", False),
            None if host in self._known else edges,
            (),
            b"" if self.silent else pack_delays(delays),
            None if host in self._known else HostFacts((("eth0", "rail0"),), False),
        )
        self._connection.request("POST", EVIDENCE_PATH, msgspec.msgpack.encode(report))
        response = self._connection.getresponse()
        reply = msgspec.msgpack.decode(response.read(), type=EvidenceReply)
        (self._known.discard if reply.needs_edges else self._known.add)(host)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A coordinator that keeps delays for ten seconds."""
    folder = tmp_path_factory.mktemp("coordinator")
    config, written = folder / "coordinator.yaml", folder / "log"
    config.write_text("delays_keep_s: 10\n")
    port = reserved_port()
    start = [
        *(sys.executable, "-Im", "fabricpulse.core.cli", "clocksync", "coordinator"),
        "--config",
        str(config),
    ]
    with written.open("wb") as log:
        daemon = subprocess.Popen(
            [*start, "--web.listen-address", f"127.0.0.1:{port}"], stdout=log, stderr=log
        )
        try:
            wait_for(lambda: "event=listening" in written.read_text(), 30, "the coordinator listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            daemon.terminate()
            assert daemon.wait(60) == 0
    assert "Traceback" not in written.read_text()


def document(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + "/api/v1/topology", timeout=60) as response:  # noqa: S310 - our own
        found: dict[str, Any] = json.loads(response.read())
    return found


def complete(answer: dict[str, Any]) -> dict[str, Any]:
    """The document if all is known, else {}."""
    return answer if (answer["placed"], answer["pairs"]) == (HOSTS, HOSTS * (HOSTS - 1) // 2) else {}


def lost(answer: dict[str, Any]) -> dict[str, Any]:
    """The document if no leaf is known, else {}."""
    return answer if answer["placed"] == 0 else {}


def show(url: str, output: str = "text") -> str:
    """What the command prints."""
    result = CliRunner().invoke(
        command, ["topology", "--fleet", url, "--output", output], catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.stdout


def test_from_no_data_to_the_tree_and_back(url: str, tmp_path: Path) -> None:
    """Without reports the answer says what is missing; then every leaf is named, in each format, and as a file that the
    placement reads; when the hosts tell no more delays it is unknown again.
    """
    assert document(url)["computed"] is None
    with pytest.raises(UserError, match="no leaf of the fabric is known yet: nothing has been computed yet"):
        show(url)
    with Reporters(url) as hosts:
        answer = wait_for(lambda: complete(document(url)), 60, "all NICs are placed, by all pairs")
        assert (
            hosts.groups({entry["nic"].partition("/")[0]: entry["leaf"] for entry in answer["nics"]})
            == hosts.true
        )
        assert (answer["hosts"], answer["edges"], answer["unseparated"], answer["miscabled"]) == (
            18,
            153,
            0,
            [],
        )
        assert min(entry["confidence"] for entry in answer["nics"]) > 0.9

        assert "18 of 18 NICs are below one of 3 leaves" in show(url)
        assert json.loads(show(url, "json"))["placed"] == HOSTS
        for form in ("graphml", "svg"):
            assert ElementTree.fromstring(show(url, form)).tag.endswith(form)  # noqa: S314 - our own
        file = tmp_path / "places.yaml"
        file.write_text(show(url, "places"))
        found = places(declarations(load_config(file, PlacesFile)), [], 8)
        assert hosts.groups({place.host: place.leaves[0] for place in found}) == hosts.true

        hosts.silent = True
        answer = wait_for(lambda: lost(document(url)), 60, "nothing is known any more")
        assert answer["missing"]


def test_nonsense_is_refused(url: str) -> None:
    """A report with delays of edges that its host does not have is answered with 400, and says why."""
    edges, delays = (EdgeName("eth0", "b", "eth0"),), pack_delays([LeastDelay(7, 1, 1)])
    report = EvidenceReport(PROTOCOL, "a", 1, 8, 135.0, 2.0, b"", False, edges, (), delays)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url + EVIDENCE_PATH, msgspec.msgpack.encode(report), 60)  # noqa: S310 - our own
    assert refused.value.code == 400
    assert b"a delay is of an edge that does not exist" in refused.value.read()
