"""The targets that Prometheus gets."""

import json

import pytest
from aiohttp.test_utils import make_mocked_request

from fabricpulse.clocksync.coordinator.coordinator import Coordinator
from fabricpulse.clocksync.wire.messages import PROTOCOL, HostInfo, RoundReport
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.web.options import WebOptions


async def listed(url: str, query: str = "") -> tuple[int, str]:
    """Status and body of http_sd of a coordinator with one member, `node1`, which is reached at `url`."""
    options = DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt")
    coordinator = Coordinator(options, Lifetime())
    coordinator._api._started_s -= 3600  # so long ago that all who live have reported
    info = HostInfo(1, url, (), (), "none")
    coordinator.fleet.report(RoundReport(PROTOCOL, "node1", 1, 1, 0, b"", None, None, "", 0, info), 0.0)
    response = await coordinator._api._http_sd(make_mocked_request("GET", f"/api/v1/http_sd{query}"))
    return response.status, response.text or ""


@pytest.mark.parametrize(
    ("url", "query", "target"),
    [
        ("http://10.0.0.1:9713", "", "10.0.0.1:9713"),
        ("http://node1.example:9713/", "", "node1.example:9713"),
        ("https://node1.example/clock", "", "node1.example:443"),
        ("https://node1.example", "?exporter=mesh", "node1.example:9610"),
        ("http://[fd00::1]:9713", "", "[fd00::1]:9713"),
        ("http://[fd00::1]:9713", "?exporter=nic", "[fd00::1]:9611"),
        ("http://10.0.0.1:9713", "?exporter=remediation-node", "10.0.0.1:9616"),
        ("http://10.0.0.1:9713", "?exporter=audit-node", "10.0.0.1:9617"),
        ("http://10.0.0.1:9713", "?port=9100", "10.0.0.1:9100"),
        ("", "", "node1:9613"),
        ("node1:9713", "", "node1:9613"),  # not from one of our version
        ("http://[::1:9713", "?exporter=qp", "node1:9612"),
    ],
)
async def test_target(url: str, query: str, target: str) -> None:
    """Host and port as Prometheus takes them; by name where the sidecar has not said what can be used."""
    status, body = await listed(url, query)

    assert status == 200
    assert json.loads(body) == [{"targets": [target], "labels": {"fabricpulse_host": "node1"}}]


@pytest.mark.parametrize("query", ["?port=70000", "?port=0", "?port=x", "?port=%C2%B2", "?exporter=none"])
async def test_what_cannot_be_scraped_is_refused(query: str) -> None:
    """Prometheus keeps its old list after an error, and shows the sentence."""
    status, body = await listed("http://10.0.0.1:9613", query)

    assert status == 400
    assert "does not lie within" in body or "is not known" in body
