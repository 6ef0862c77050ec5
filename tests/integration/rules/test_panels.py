"""Every panel, variable and recording rule finds data in a real Prometheus that scrapes every metric of the catalogue.

A query may be valid and name real metrics and labels and still match nothing, because two sides of an operator have
different labels or a legend names a label that was summed away. So one target exposes each metric of the catalogue
with one good and one bad device, Prometheus scrapes it and evaluates our rules, and each query must bring something.
"""

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.fixtures.ports import reserved_port
from tests.fixtures.rules.summaries import add_summary
from tests.fixtures.waiting import wait_for
from tests.unit.rules.compiled import MIXIN

from fabricpulse.core.errors import UserError
from fabricpulse.core.metrics.catalogue import MetricSpec, load_catalogue
from fabricpulse.core.metrics.common import BUILD_INFO, METRICS_VERSION
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.nic.recent_errors import COUNTERS
from fabricpulse.rules.command import command
from fabricpulse.rules.perses import perses_dashboards, queries_of
from fabricpulse.rules.perses_parts import without_end

ROOT = Path(__file__).parents[3]
DEVICES = ("rail0", "rail1")
STEP_S = 0.5
# How often nothing is well: a single such scrape may be lost on a busy machine. Odd, as two hosts take turns.
BAD_SCRAPE_EACH = 11
# Series of what is suspected only: rightly empty here, where nothing is. promtool's cases hold them.
SUSPECTS = {
    # Here each name of a NIC is in one network, and all its links have one speed.
    "device:fabricpulse_nic_network:other",
    "device:fabricpulse_nic_link_speed_bytes_per_second:other",
    "daemon:fabricpulse_up:down",
    "workload:fabricpulse_gpus:lost",
    "host:fabricpulse_qp_processes:lost",
    "flow:fabricpulse_qp_owd_seconds:slow",
    "flow:fabricpulse_qp_received_bytes:watched_rate",
    "flow:fabricpulse_qp_received_bytes:slow_rate",
    "flow:fabricpulse_qp_received_bytes:starved_rate",
    "nic:fabricpulse_qp_received_bytes:slow_rate",
    "nic:fabricpulse_qp_received_bytes:peak_ratio",
    "flow:fabricpulse_qp_owd_seconds:contended",
    "flow:fabricpulse_qp_owd_seconds:contended_paths",
    "flow:fabricpulse_qp_owd_seconds:contended_in_network",
    "flow:fabricpulse_qp_owd_seconds:in_band_suspects",
    "flow:fabricpulse_qp_owd_seconds:slower_than_probes",
    "device:fabricpulse_edge_latency_elevated:receiving",
    "device:fabricpulse_edge_latency_elevated:receiving_edges",
    "device:fabricpulse_edge_latency_elevated:receiving_many",
    "peer:fabricpulse_edge_latency_elevated:sending",
    "peer:fabricpulse_edge_latency_elevated:sending_edges",
    "peer:fabricpulse_edge_latency_elevated:sending_many",
    "device:fabricpulse_edge_latency_elevated:slowest",
    "device:fabricpulse_edge_latency_elevated:suspects",
    "device:fabricpulse_edge_latency_elevated:unshared",
    "network:fabricpulse_edge_latency_elevated:slow_hosts",
    "device:fabricpulse_edge_latency_elevated:count",
    "device:fabricpulse_edge_latency_elevated:measured",
    "edge:fabricpulse_edge_latency_elevated:alone",
    "device:fabricpulse_edge_latency_elevated:full_rate",
    "device:fabricpulse_edge_owd_seconds:slow_min",
    "device:fabricpulse_edge_paths_down:count",
    "device:fabricpulse_edge_probes_lost:lossy_by_themselves_ratio",
    "device:fabricpulse_edge_probes_lost:lossy_as_peers_ratio",
    "device:fabricpulse_edge_probes_lost:lossy_ratio",
    "network:fabricpulse_edge_probes_lost:lossy_nics",
    "leaf:fabricpulse_edge_probes_lost:lossy_nics",
    "edge:fabricpulse_edge_mtu_black_hole_bytes:min",
    "edge:fabricpulse_edge_mtu_black_hole_bytes:receiver_to_sender_ratio",
    "device:fabricpulse_edge_mtu_black_hole_bytes:min",
    "device:fabricpulse_edge_mtu_black_hole_bytes:as_peers",
    "network:fabricpulse_edge_mtu_black_hole_bytes:nics",
    "device:fabricpulse_nic_attribute:different",
    "device:fabricpulse_nic_bytes:slow_rate",
    "device:fabricpulse_nic_connected:all_zero",
    "device:fabricpulse_nic_connected:outdated_zero",
    "device:fabricpulse_nic_connected:zero",
    "device:fabricpulse_nic_place:faulty",
    "device:fabricpulse_nic_place:slow",
    "device:fabricpulse_nic_network:of_contended",
    "device:fabricpulse_edge_worst_path_loss:count",
    "edge:fabricpulse_edge_latency_elevated:of_lossy",
    "lane:fabricpulse_lane_state:of_faulty_nic",
    "lane:fabricpulse_lane_state:of_last_resort",
    "lane:fabricpulse_lane_failovers:increase",
}

# Of targets without our metrics, and of samples left out, there are none.
NONE_HERE = (
    "== 1 unless on (cluster, job, instance) last_over_time(fabricpulse_build_info",
    'family!=""',
)


def find_prometheus() -> list[str]:
    folders = [ROOT / ".tools" / "usr" / "bin", ROOT / ".tools" / "newer" / "usr" / "bin"]
    found = [str(folder / "prometheus") for folder in folders if (folder / "prometheus").is_file()]
    on_path = shutil.which("prometheus")
    return found or ([on_path] if on_path else [])


def label_values(spec: MetricSpec, device: str, counter: str) -> list[str]:
    """One label set a device; labels that tell nothing of devices are the same for both. counter : of its own name,
    or the state of edges that it counts.
    """
    own = {
        "device": device,
        "network": device,
        "peer_device": device,
        "direction": device,
        "counter": counter,
        "nth": counter,
    }
    known = {
        "peer": "h1",
        "workload": "42",
        "port": "1",
        "code": "rollback_failed",
        "reason": "address",
        "outcome": "failed",
        "recovery": "recovered",
        "state": counter if spec.name == "fabricpulse_nic_edges" else "unknown",
        "paths": "whole",
        "path": "worst",
        "index": "1",
    }
    return [own.get(label) or known.get(label, f"some {label}") for label in spec.labels]


def exposition(scrapes: int) -> bytes:
    """Everything: rail0 in the best state (gauges 1), rail1 in the worst (gauges 0), all counters rising.

    In one scrape of BAD_SCRAPE_EACH nothing is in the best state, for panels that show what was not well in the range.
    """
    out = Exposition()
    for spec in load_catalogue().values():
        if spec.name.startswith("fabricpulse_exporter_"):
            continue  # the exposition writes its own
        if spec is BUILD_INFO:
            for daemon in ("mesh", "nic", "qp", "clocksync-coordinator", "remediation-receiver"):
                out.add(spec, ("1", daemon, "3", str(METRICS_VERSION)), 1)
            continue
        seen = set()
        counters = [*COUNTERS, "received_packets"] if "counter" in spec.labels else [""]
        if "nth" in spec.labels:
            counters = ["1", "2", "3"]
        if spec.name == "fabricpulse_nic_edges":
            counters = ["down", "degraded"]
        for (number, device), counter in itertools.product(enumerate(DEVICES), counters):
            values = label_values(spec, device, counter)
            if tuple(values) in seen:
                continue
            seen.add(tuple(values))
            if spec.type == "histogram":
                out.add_histogram(spec, values, [scrapes * 3] * (len(spec.buckets) + 1), scrapes / 10)
            elif spec.type == "summary":
                add_summary(
                    out, spec, values, {0.1: 5e-6, 0.5: 1e-5, 0.99: 2e-5, 1: 3e-5}, scrapes / 10, scrapes
                )
            elif spec.name == "fabricpulse_edge_probes_received_total":
                out.add(spec, values, scrapes * (3 - number))
            elif spec.type == "counter":
                out.add(spec, values, scrapes * 3)
            else:
                out.add(spec, values, 1 - number if scrapes % BAD_SCRAPE_EACH else 0)
    return out.render()


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """An exporter of everything."""
    scrapes = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal scrapes
            scrapes += 1
            body = exposition(scrapes)
            self.send_response(200)
            self.send_header("Content-Type", TextFormat.PLAIN.value)
            self.end_headers()
            # A scrape that took too long on a busy machine is Prometheus' to repeat.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}{path}?{query}", timeout=60) as response:
            return json.load(response)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of `expression`, which must not make Prometheus warn."""
        answer = self.get("/api/v1/query", query=expression)
        assert not answer.get("warnings"), f"{expression}: {answer['warnings']}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@pytest.fixture(
    scope="module", params=find_prometheus() or [""], ids=lambda path: path.removeprefix(f"{ROOT}/")
)
def prometheus(
    request: pytest.FixtureRequest, target: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the target for a while and evaluated our rules."""
    if not request.param:
        pytest.skip("prometheus is not installed; scripts/fetch_tools.sh gets it")
    folder = tmp_path_factory.mktemp("prometheus")
    config = {
        "global": {
            "scrape_interval": f"{STEP_S * 1000:.0f}ms",
            "evaluation_interval": f"{STEP_S * 1000:.0f}ms",
        },
        "rule_files": write_rules(folder),
        "scrape_configs": [
            {
                "job_name": "fabricpulse-mesh",
                "static_configs": [
                    {"targets": [target], "labels": {"instance": host, "cluster": "a"}}
                    for host in ("h0", "h1")
                ],
            },
            {
                "job_name": "fabricpulse-dead",
                "static_configs": [{"targets": [f"127.0.0.1:{reserved_port()}"], "labels": {"cluster": "a"}}],
            },
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{reserved_port()}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                request.param,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    server = Prometheus(address)
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            return warmed_up(server)

        wait_for(ready, 60, "Prometheus has what the panels ask for", poll_s=STEP_S)
        yield server
    finally:
        process.terminate()
        process.wait(60)


def write_rules(folder: Path) -> list[str]:
    """The shipped rules without what takes minutes: intervals of a group's own, and offsets, which become a step."""
    written = []
    for file in sorted([*(ROOT / "rules/alerts").iterdir(), *(ROOT / "rules/recording").iterdir()]):
        rules = yaml.safe_load(re.sub(r"\boffset \w+", f"offset {STEP_S * 1000:.0f}ms", file.read_text()))
        for group in rules["groups"]:
            group.pop("interval", None)
        path = folder / file.parent.name / file.name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(rules))
        written.append(str(path))
    return written


def warmed_up(server: Prometheus) -> bool:
    """Whether all recording rules have had the samples that they need. ValueError that names those that have not."""
    records = {rule["record"] for group in MIXIN.rules for rule in group["rules"]} - SUSPECTS
    scrapes = server.query("min(count_over_time(fabricpulse_nic_disconnects_total[1m]))")
    if not scrapes or float(scrapes[0]["value"][1]) < 5:
        return False
    if missing := sorted(record for record in records if not server.query(record)):
        raise ValueError(f"no samples of {', '.join(missing)}")
    return True


def interpolated(expression: str) -> str:
    """As Grafana would ask with "All" chosen everywhere."""
    for name, value in (("__rate_interval", "1m"), ("__range", "30m")):
        expression = expression.replace(f"${name}", value)
    return re.sub(r"\$[a-z_]+", ".*", expression)


def queries() -> Iterator[Any]:
    for file, dashboard in MIXIN.dashboards.items():
        for panel in dashboard["panels"]:
            for place in panel.get("panels", []) or [panel]:
                for query in place.get("targets", []):
                    name = f"{file.removesuffix('.json')}: {place['title']} {query['refId']}"
                    yield pytest.param(query["expr"], query["legendFormat"], id=name)


def queries_of_perses() -> Iterator[Any]:
    """Those that Grafana does not ask."""
    asked = {param.values[0] for param in queries()}
    for file, resource in perses_dashboards(MIXIN.dashboards).items():
        for title, expression, _ in queries_of(resource):
            if expression not in asked:
                yield pytest.param(expression, id=f"{file.removesuffix('.json')}: {title}")


@pytest.mark.prometheus
@pytest.mark.parametrize(("expression", "legend"), list(queries()))
def test_panel(prometheus: Prometheus, expression: str, legend: str) -> None:
    """The panel's query brings series, and they have the labels that its legend names. One that says that nothing has a
    fault, or has risen, brings none here, where something has, and would if nothing had. Of what is rightly empty here
    it may bring none.
    """

    def asked(query: str) -> list[dict[str, Any]]:
        # After a scrape that was late there is nothing for a moment.
        return wait_for(lambda: prometheus.query(interpolated(query)), 30, query, poll_s=STEP_S)

    if legend == "not all measured":
        # That it is said where it is so tests/unit/rules/test_no_fault_line.py holds. For a moment it is after a scrape
        # that was late.
        wait_for(lambda: not prometheus.query(interpolated(expression)), 30, "all measured", poll_s=STEP_S)
        return
    if legend == "none above 0" and "fabricpulse_exporter_dropped_samples" in expression:
        assert asked(expression)  # nothing is cut here
        return
    if '"none of ' in expression or (
        legend == "none of what is measured" and "fabricpulse_leaves" in expression
    ):
        row = re.fullmatch(
            r'(?:label_replace\()?(.*) unless on \(\) (count\(.*?\))(?:, "\w+", "none of .*"\))?', expression
        )
        assert row
        assert asked(row[1])
        # Where there are some it says nothing.
        wait_for(
            lambda: (
                bool(prometheus.query(interpolated(expression)))
                != bool(prometheus.query(interpolated(row[2])))
            ),
            30,
            expression,
            poll_s=STEP_S,
        )
        return
    if legend in {"no fault", "none in the range", "none above 0"}:
        assert not prometheus.query(interpolated(expression))
        measured, faults, _ = expression.split(" unless on () ")
        assert asked(faults)
        expression = measured
    if any(name in expression for name in (*SUSPECTS, *NONE_HERE)):
        result = prometheus.query(interpolated(expression))
    else:
        result = asked(expression)
    for label in re.findall(r"{{(\w+)}}", legend):
        assert all(label in series["metric"] for series in result), f"no label {label}"


@pytest.mark.prometheus
@pytest.mark.parametrize("expression", list(queries_of_perses()))
def test_panel_of_perses(prometheus: Prometheus, expression: str) -> None:
    """A number of now, asked for over a range as Perses does, has one sample, at the end, and it is that of now."""
    step = 15

    def same() -> bool:
        end = int(time.time()) - 1
        over_time = prometheus.get(
            "/api/v1/query_range",
            query=interpolated(expression),
            start=str(end - 20 * step),
            end=str(end),
            step=str(step),
        )
        assert not over_time.get("warnings")
        samples = [each["values"] for each in over_time["data"]["result"]]
        assert all([moment for moment, _ in values] == [end] for values in samples)
        now = prometheus.get("/api/v1/query", query=interpolated(without_end(expression)), time=str(end))
        return bool(samples) and [values[0] for values in samples] == [
            each["value"] for each in now["data"]["result"]
        ]

    # After a scrape that was late there is nothing for a moment.
    wait_for(same, 60, "the number of now", poll_s=STEP_S)


@pytest.mark.prometheus
@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_variables(prometheus: Prometheus, file: str) -> None:
    """Each variable finds values to choose from."""
    for variable in MIXIN.dashboards[file]["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match
            series = prometheus.get("/api/v1/series", **{"match[]": interpolated(match[1])})["data"]
            assert {row[match[2]] for row in series}, variable["name"]


@pytest.mark.prometheus
def test_rules_are_healthy(prometheus: Prometheus) -> None:
    """No rule fails to evaluate, and what is bad in the data alerts as soon as it may."""
    groups = prometheus.get("/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]

    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    active = {rule["name"] for rule in rules if rule["type"] == "alerting" and rule["alerts"]}
    expected = {"FabricNicDisconnected", "FabricNicFlapping", "FabricLaneDown", "FabricClockBoundWide"}
    assert expected <= active


# The target has one value of each label; selectors of others find nothing.
OTHER_VALUES = {
    'fabricpulse_exporter_dropped_samples{family!=""}',
    'fabricpulse_fault_component{kind=~"switch|link"}',
    'fabricpulse_lanes{state="last_resort"}',
    'fabricpulse_nic_edges{state=~"up"}',
    'fabricpulse_rank_unmoved_operations{state="inside"}',
    'fabricpulse_rank_unmoved_operations{state="outside"}',
}


@pytest.mark.prometheus
def test_rules_check(prometheus: Prometheus) -> None:
    """`rules check` finds every series that the rules want; with a selector that fits none it says so and fails."""
    url = f"http://{prometheus.address}"

    missing: set[str] = set()

    def all_found() -> bool:
        good = CliRunner().invoke(command, ["check", "--prometheus", url, "--output", "json"])
        assert good.exit_code == 0, good.output
        document = json.loads(good.stdout)
        assert set(document["outdated"].values()) <= {0}
        missing.clear()
        missing.update(document["empty"], document["waiting"], *document["unscraped"].values())
        return missing <= OTHER_VALUES

    # Of a scrape that is late everything is missing for a moment.
    try:
        wait_for(all_found, 60, "every series that the rules want", poll_s=STEP_S)
    except AssertionError as error:
        raise AssertionError(f"missing: {sorted(missing - OTHER_VALUES)}") from error

    with pytest.raises(UserError, match=r"windows of rates hold fewer than two samples.*scrape more often"):
        CliRunner().invoke(
            command,
            ["check", "--prometheus", url, "--set", "rateWindow=1ms"],
            standalone_mode=False,
            catch_exceptions=False,
        )

    with pytest.raises(UserError, match=r"nothing in http.* matches: .* every alert but .* stays silent"):
        CliRunner().invoke(
            command,
            ["check", "--prometheus", url, "--set", 'selector=cluster="b"'],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_rules_check_without_a_prometheus() -> None:
    """Nobody at the URL, or something else, is one sentence."""
    with pytest.raises(UserError, match=r"cannot ask http://127.0.0.1:1: .*give the URL of a Prometheus"):
        CliRunner().invoke(command, ["check", "--prometheus", "http://127.0.0.1:1"], catch_exceptions=False)
