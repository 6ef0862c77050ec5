"""Which panels have data where all is real: the demo's daemons, links, rules and Prometheus, after each scenario.

A panel has data if one of its queries brings a series for the quarter of an hour before the end of a run, with all
chosen everywhere, or the line that says that nothing has a fault; not by the one that says that nothing is measured.

A panel needs hardware if all that it reads, also by way of records, is of devices that this machine does not have, and
no series of it was there. One that reads anything beside them is to have data.
"""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.unit.rules.compiled import MIXIN, RECORDS, panels

from fabricpulse.lab.demo.scenarios import SCENARIOS

_LONGEST_S = 900
_RANGE_S = 900
_STEP_S = 15
_NOT_MEASURED = "not all measured"
# What the links of a lab, which are virtual, do not have, by the metrics that need it.
_HARDWARE = tuple(
    (re.compile(rf"fabricpulse_(?:{names})"), what)
    for names, what in (
        (r"nic_(?:info|present|pcie_\w+)", "a NIC on a PCIe bus"),
        (r"nic_module_\w+", "an optical module"),
        (r"nic_(?:fec|phy)_\w+", "a PHY with error correction"),
        (r"nic_(?:pfc|pause|global_pause|priority)_\w+", "a NIC with flow control"),
        (r"nic_expected_ports\w*", "RDMA ports that a host should have"),
        (r"nic_(?:port_up|nccl_gid_\w+|transmit_wait_ticks_total)", "an RDMA device"),
        (r"nic_(?:received|transmitted)_(?:bytes|packets)_total", "an RDMA device"),
        (r"nic_(?:ecn|cnp|out_of|packet_sequence|ack|retransmits|rnr|transport)_\w+", "an RDMA device"),
        (r"nic_(?:ecn|cnp)_\w+|qp_(?:ecn_marked|retransmits)_total", "an RDMA device"),
        (r"nic_(?:symbol|local_link|link_error_recovery|receive)_\w+", "an InfiniBand port"),
        (r"nic_recent_(?:rate|increase)", "a counter of a device that grows"),
    )
)


@dataclass(frozen=True)
class Drawn:
    """Panels as 'page: title' that have data, and that have none. needing : of the latter those that need hardware,
    with what each of their metrics is of. failing : queries with an error or a warning.
    """

    having: frozenset[str]
    empty: frozenset[str]
    needing: Mapping[str, Mapping[str, str]]
    failing: tuple[str, ...]


def after(scenario: str, folder: Path) -> Drawn:
    """Plays a scenario and asks for all panels before it is torn down. RuntimeError if it ends without a result."""
    result = folder / f"{scenario}.json"
    # The demo takes four in a row, which is how they are given.
    port = min(reserved_port() for _ in range(4))
    result.unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "fabricpulse.core.cli",
        "demo",
        "--headless",
        "--keep",
        "--scenario",
        scenario,
    ]
    argv += ["--hosts", str(SCENARIOS[scenario].least_hosts), "--json", str(result), "--port", str(port)]
    with (folder / "log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as demo:
        try:

            def over() -> bool:
                if demo.poll() is not None and not result.exists():
                    raise RuntimeError((folder / "log").read_text()[-2000:])
                return result.exists()

            wait_for(over, _LONGEST_S, f"the result of {scenario}", poll_s=0.5)
            return drawn(f"127.0.0.1:{port}", time.time())
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(120)


def drawn(address: str, end: float) -> Drawn:
    """What all panels find in the Prometheus there."""
    having, empty, failing = set[str](), set[str](), list[str]()
    needing = dict[str, Mapping[str, str]]()
    there = frozenset(_get(address, "label/__name__/values", {})["data"])
    for file, dashboard in MIXIN.dashboards.items():
        page = file.removeprefix("fabricpulse-").removesuffix(".json")
        for panel in panels(dashboard):
            name = f"{page}: {panel['title'].partition(', $')[0]}"
            found = 0
            for target in panel.get("targets", []):
                answer = _ask(address, target, end)
                if answer["status"] != "success" or answer.get("warnings"):
                    failing.append(f"{name}: {answer.get('error') or answer['warnings']}")
                elif target["legendFormat"] != _NOT_MEASURED:
                    found += len(answer["data"]["result"])
            if panel.get("targets"):
                (having if found else empty).add(name)
                if not found and (hardware := needs([t["expr"] for t in panel["targets"]], there)):
                    needing[name] = hardware
    return Drawn(frozenset(having), frozenset(empty), needing, tuple(failing))


def needs(expressions: Iterable[str], there: Collection[str]) -> Mapping[str, str]:
    """The hardware that these queries need, by metric; nothing where one of them is there, or is not of hardware.
    there : names of metrics that have series.
    """
    needed = {metric: _hardware(metric) for metric in sorted(_metrics(expressions))}
    return needed if all(needed.values()) and not needed.keys() & set(there) else {}


def _hardware(metric: str) -> str:
    return next((what for names, what in _HARDWARE if names.fullmatch(metric)), "")


def _metrics(expressions: Iterable[str]) -> set[str]:
    """Metrics of exporters that are read, also by way of records."""
    found, left = set[str](), list(expressions)
    seen = set[str]()
    while left:
        for name in set(re.findall(r"[a-z]\w*(?::\w+)*", left.pop())) - seen:
            seen.add(name)
            if name in RECORDS:
                left.append(RECORDS[name]["expr"])
            elif name.startswith("fabricpulse_"):
                found.add(name)
    return found


def _ask(address: str, target: Mapping[str, Any], end: float) -> Any:
    expression = target["expr"].replace("$__rate_interval", "1m").replace("$__range", f"{_RANGE_S}s")
    asked = {"query": re.sub(r"\$[a-z_]+", ".*", expression)}
    # Tables, too, which show one moment: at the end of a run the fault is over, and they are empty again.
    asked |= {"start": f"{end - _RANGE_S:.0f}", "end": f"{end:.0f}", "step": str(_STEP_S)}
    return _get(address, "query_range", asked)


def _get(address: str, path: str, asked: Mapping[str, str]) -> Any:
    try:
        with urllib.request.urlopen(
            f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(asked)}", timeout=60
        ) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return json.load(error)
