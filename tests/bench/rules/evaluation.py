"""What the rules cost a real Prometheus: CPU time of its process for each rule, on a fleet on paper.

The fleet's samples of a quarter of an hour are written to Prometheus' head by remote write, up to one moment, at which
every rule is then evaluated as Prometheus evaluates it, by an instant query. It scrapes nothing meanwhile: all CPU time
that it takes, garbage collection included, is that of the queries. What they record, and which alerts they make fire,
is written back first, as other rules read it, with a sample at each interval of its group. An answer is counted there
(`count(...)`), so that no series go over HTTP; what it costs to store recorded series is left out.
"""

import http.client
import json
import math
import re
import struct
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import promql_parser
from tests.bench.rows import cpu_seconds
from tests.bench.rules.fleet import PaperFleet
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.unit.rules.mutation import seconds
from tests.unit.rules.needed_rules import name_of

SCRAPE_S = 15
# A chunk of the head has 120 samples, which are read from its beginning: half of one is what a query meets on average.
_HISTORY_S = 900
# What is older than an hour the head does not take.
_OLDEST_S = 3500
_BODY_BYTES = 1_000_000

Rule = dict[str, Any]


def history_s(rules: Sequence[Rule]) -> dict[str, int]:
    """How far back the rules look, by metric, where it is more than a quarter of an hour."""
    pattern = re.compile(r"([a-z][a-z_:0-9]*)(?:\{[^}]*\})?(?:\[(\w+)\])?(?: offset (\w+))?")
    longest: dict[str, int] = {}
    for rule in rules:
        for name, window, offset in pattern.findall(rule["expr"]):
            age = seconds(window) + seconds(offset)
            if age > _HISTORY_S:
                longest[name] = max(longest.get(name, 0), min(age, _OLDEST_S))
    return longest


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Records before what reads them; of those that read one another in a circle the first one first, which reads what
    the others recorded an evaluation before.
    """
    needs = {name_of(rule): _names(rule) - {name_of(rule)} for rule in rules if "record" in rule}
    left, done, out = list(rules), set[str](), list[Rule]()
    while left:
        ready = [rule for rule in left if not (_names(rule) & needs.keys()) - done - {name_of(rule)}]
        if not ready:
            ready = [next(rule for rule in left if name_of(rule) in _all_needs(name_of(rule), needs, done))]
        out += ready
        done |= {name_of(rule) for rule in ready}
        left = [rule for rule in left if rule not in ready]
    return out


def _all_needs(name: str, needs: Mapping[str, set[str]], done: set[str]) -> set[str]:
    found, left = set[str](), [name]
    while left:
        new = needs.get(left.pop(), set()) & needs.keys() - done - found
        found |= new
        left += new
    return found


def _names(rule: Rule) -> set[str]:
    return set(re.findall(r"[a-z][a-z_0-9]*:[a-z_0-9]+:[a-z_:0-9]+", rule["expr"]))


@dataclass
class Evaluation:
    """What was measured. rule_ms : CPU time of each rule, the least of the rounds; group_ms : their sums. all_ms : of
    all rules once, mean of the rounds, garbage collection included. per_scrape_ms : of what is evaluated between two
    scrapes, mean of the longest interval of a group, garbage collection included. read_ms : of reading each series that
    a rule reads of an exporter once an interval, and nothing else: the least that rules which read these can take.
    selected : series that the selectors of all rules find between two scrapes, each as often as it is selected,
    recorded ones too: what takes most of the time, and is the same on every machine. series : in the head. failing :
    what has an error.
    """

    all_ms: float = math.nan
    per_scrape_ms: float = math.nan
    read_ms: float = math.nan
    selected: int = 0
    rule_ms: dict[str, float] = field(default_factory=dict)
    group_ms: dict[str, float] = field(default_factory=dict)
    series: int = 0
    failing: list[str] = field(default_factory=list)


def evaluate(
    prometheus: Sequence[str],
    fleet: PaperFleet,
    groups: Sequence[dict[str, Any]],
    folder: Path,
    rounds: int = 3,
) -> Evaluation:
    """Fills a Prometheus with the fleet, and measures all rules on it.

    prometheus : its command line. groups : rule groups, as in rules/. folder : where it may keep its data.
    """
    rules = in_order([rule for group in groups for rule in group["rules"]])
    intervals = {id(rule): interval_s(group) for group in groups for rule in group["rules"]}
    history = history_s(rules)
    with _running(prometheus, folder) as (process, address):
        now = int(time.time())
        _write(address, _fleet_series(fleet, history, now))
        found = Evaluation()
        for rule in rules:
            try:
                result = _query(address, rule["expr"], now)
            except OSError:
                found.failing.append(name_of(rule))
                continue
            _write(address, _recorded(rule, result, history, now, intervals[id(rule)]))
        found.series = int(_get(address, "/api/v1/status/tsdb")["headStats"]["numSeries"])
        found.selected = round(_selected_per_scrape(address, groups, now))
        taken: dict[int, list[float]] = {}
        measured = [rule for rule in rules if name_of(rule) not in found.failing]
        for rule in measured:  # what is made once, as memory of the process
            _query(address, f"count({rule['expr']})", now)
        began = cpu_seconds(process.pid)
        for _ in range(rounds):
            for rule in measured:
                before = cpu_seconds(process.pid)
                _query(address, f"count({rule['expr']})", now)
                taken.setdefault(id(rule), []).append(1e3 * (cpu_seconds(process.pid) - before))
        found.all_ms = 1e3 * (cpu_seconds(process.pid) - began) / rounds
        queries = [
            (f"count({rule['expr']})", intervals[id(rule)])
            for rule in rules
            if name_of(rule) not in found.failing
        ]
        found.per_scrape_ms = _per_scrape_ms(process.pid, address, queries, now)
        reads = [(f"count({each})", interval) for each, interval in selectors(groups).items()]
        found.read_ms = _per_scrape_ms(process.pid, address, reads, now)
        for group in groups:
            costs = [(name_of(rule), min(taken[id(rule)])) for rule in group["rules"] if id(rule) in taken]
            found.group_ms[group["name"]] = sum(cost for _, cost in costs)
            for name, cost in costs:
                found.rule_ms[name] = found.rule_ms.get(name, 0.0) + cost
        return found


def interval_s(group: dict[str, Any]) -> int:
    """How often Prometheus evaluates a group where it evaluates the others with each scrape."""
    return int(seconds(group.get("interval", f"{SCRAPE_S}s")))


def selectors(groups: Sequence[dict[str, Any]]) -> dict[str, int]:
    """What of exporters is selected, with the shortest interval of a group that does."""
    shortest: dict[str, int] = {}
    for group in groups:
        for rule in group["rules"]:
            for selected in _selected(promql_parser.parse(rule["expr"])):
                if not re.match(r"ALERTS|\w+:", selected):
                    shortest[selected] = min(shortest.get(selected, interval_s(group)), interval_s(group))
    return shortest


def _selected(node: Any) -> Iterator[str]:
    match node:
        case promql_parser.VectorSelector():
            yield re.sub(r" offset .*", "", node.prettify())
        case promql_parser.MatrixSelector():
            yield from _selected(node.vector_selector)
        case promql_parser.BinaryExpr():
            yield from _selected(node.lhs)
            yield from _selected(node.rhs)
        case promql_parser.Call():
            for argument in node.args:
                yield from _selected(argument)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from _selected(node.expr)
        case promql_parser.SubqueryExpr():
            yield from _selected(node.expr)


def _per_scrape_ms(pid: int, address: str, queries: Sequence[tuple[str, int]], now: int) -> float:
    scrapes = max(interval for _, interval in queries) // SCRAPE_S
    began = cpu_seconds(pid)
    for scrape in range(scrapes):
        for query, interval in queries:
            if scrape % (interval // SCRAPE_S) == 0:
                _query(address, query, now)
    return 1e3 * (cpu_seconds(pid) - began) / scrapes


def _selected_per_scrape(address: str, groups: Sequence[dict[str, Any]], now: int) -> float:
    there = dict[str, float]()
    total = 0.0
    for group in groups:
        for rule in group["rules"]:
            for selected in _selected(promql_parser.parse(rule["expr"])):
                if selected not in there:
                    counted = _query(address, f"count(last_over_time({selected}[5m]))", now)
                    there[selected] = float(counted[0]["value"][1]) if counted else 0.0
                total += there[selected] * SCRAPE_S / interval_s(group)
    return total


@contextmanager
def _running(command: Sequence[str], folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    (folder / "prometheus.yml").write_text("{}")
    address = f"127.0.0.1:{reserved_port()}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *command,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--web.enable-remote-write-receiver",
            ],
            stdout=log,
            stderr=log,
        )

        def ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            try:
                with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10):
                    return True
            except OSError:
                return False

        try:
            wait_for(ready, 60, "Prometheus answers")
            yield process, address
        finally:
            process.kill()  # nothing of it is wanted: to stop it in order would write the head to disk
            process.wait(120)


def _get(address: str, path: str, body: dict[str, str] | None = None) -> Any:
    data = None if body is None else urllib.parse.urlencode(body).encode()
    with urllib.request.urlopen(f"http://{address}{path}", data, timeout=300) as answer:
        return json.load(answer)["data"]


def _query(address: str, expression: str, now: int) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = _get(address, "/api/v1/query", {"query": expression, "time": str(now)})[
        "result"
    ]
    return result


def _fleet_series(fleet: PaperFleet, history: dict[str, int], now: int) -> Iterator[bytes]:
    for job, instance, target in fleet.targets():
        own = {"cluster": "a", "instance": instance, "job": job}
        for series in target:
            labels = own | dict(re.findall(r'(\w+)="([^"]*)"', series.labels)) | {"__name__": series.name}
            yield _series(labels, series.value, history.get(series.name, _HISTORY_S), now)


def _recorded(
    rule: Rule, result: list[dict[str, Any]], history: dict[str, int], now: int, interval: int
) -> Iterator[bytes]:
    name = rule.get("record", "ALERTS")
    more = {"alertname": rule["alert"], "alertstate": "firing", **rule["labels"]} if "alert" in rule else {}
    for sample in result:
        yield _series(
            sample["metric"] | more | {"__name__": name},
            sample["value"][1],
            history.get(name, _HISTORY_S),
            now,
            interval,
        )


def _series(labels: dict[str, str], value: str, history: int, now: int, interval: int = SCRAPE_S) -> bytes:
    """A TimeSeries of Prometheus' remote write, protocol 0.1."""
    pairs = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, text.encode()))
        for name, text in sorted(labels.items())
        if text
    )
    return _field(1, pairs + _samples(value, history, now, interval))


@lru_cache(maxsize=200)
def _samples(value: str, history: int, now: int, interval: int) -> bytes:
    rate = re.fullmatch(r"@(.+)@", value)
    out = []
    for number, age in enumerate(reversed(range(0, history + 1, interval))):
        # No counter grows evenly.
        value_then = int(float(rate[1]) * (history - age + number * 7919 % 13 / 3)) if rate else float(value)
        stamp = _varint((now - age) * 1000)
        out.append(_field(2, b"\x09" + struct.pack("<d", value_then) + b"\x10" + stamp))
    return b"".join(out)


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _write(address: str, series: Iterable[bytes]) -> None:
    parts: list[bytes] = []
    size = 0
    for part in series:
        parts.append(part)
        size += len(part)
        if size > _BODY_BYTES:
            _post(address, b"".join(parts))
            parts, size = [], 0
    if parts:
        _post(address, b"".join(parts))


def _post(address: str, data: bytes) -> None:
    # Snappy without compression: one literal.
    body = _varint(len(data)) + b"\xfc" + struct.pack("<I", len(data) - 1) + data
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    connection = http.client.HTTPConnection(address, timeout=300)
    connection.request("POST", "/api/v1/write", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"Prometheus took no samples: {answer.status} {text.decode()}")
