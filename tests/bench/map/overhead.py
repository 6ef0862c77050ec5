"""What locating faults costs a healthy NIC: packets of traces beside those of probes, and bytes of reports."""

import json
import re
import time

from tests.bench.rows import Rows
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet, Scrape

from fabricpulse.lab import Lab

_PORT, _HOSTS = 9614, 9
_TRACE_PACKETS = 8  # of one trace: docs/configuration.md, probe.trace_s
_STEADY_S = 60.0


def _counts(fleet: MeshFleet, host: str) -> tuple[float, float]:
    """Packets of traces, at most, and of probes, that a host has sent."""
    scrape: Scrape = fleet.scrape(host)
    traces = sum(scrape.values("fabricpulse_mesh_path_traces_total"))
    return _TRACE_PACKETS * traces, sum(scrape.values("fabricpulse_edge_probes_sent_total"))


def _reported_bytes(lab: Lab, host: str) -> int:
    """That this host has sent to the coordinator over the connections that are open, HTTP's head lines in it."""
    text = lab.run(host, ["ss", "-tinO", "state", "established", "dst", f":{_PORT}"]).stdout
    return sum(int(sent) for sent in re.findall(r"\bbytes_sent:(\d+)", text))


def bench_overhead(rows: Rows) -> None:
    """With the default settings, one NIC a host: while paths become known, then a minute in which nothing happens."""
    with Lab(hosts=_HOSTS, rails=1, spines=3, pods=3) as lab:
        lab.popen(
            "mgmt", ["fabricpulse", "clocksync", "coordinator", "--web.listen-address", f":{_PORT}"]
        ).wait_for_output("event=listening")
        url = f"http://{lab.resolve('mgmt')}:{_PORT}"
        fleet = MeshFleet(lab, evidence={"url": url}).start()
        fleet.wait_green(30)
        host = lab.hosts[0].name
        traced, probed = _counts(fleet, host)
        flows = _HOSTS * (_HOSTS - 3) * 8

        def paths() -> int:
            return int(json.loads(lab.http_get("mgmt", f"http://127.0.0.1:{_PORT}/api/v1/suspects"))["paths"])

        wait_for(lambda: paths() == flows, 240, "all paths are known")
        case = f"{_HOSTS} hosts, one NIC each, {_HOSTS - 1} peers"
        more_traced, more_probed = _counts(fleet, host)
        share = 100 * (more_traced - traced) / (more_probed - probed)
        rows.report(f"{case}, while paths become known", "path_probe_share", round(share, 3), "%", "<= 1")
        before, began_s = _reported_bytes(lab, host), time.monotonic()
        time.sleep(_STEADY_S)  # the time that is measured
        sent, lasted_s = _reported_bytes(lab, host) - before, time.monotonic() - began_s
        traced, probed = (
            now - then for now, then in zip(_counts(fleet, host), (more_traced, more_probed), strict=True)
        )
        case += f", {_STEADY_S:.0f} s in which nothing happens"
        rows.report(case, "path_probe_share", round(100 * traced / probed, 3), "%", "<= 1")
        rows.report(
            case, "report_bytes_per_s", round(sent / lasted_s, 1), "B/s", "<= 100", of="one host, HTTP in it"
        )
