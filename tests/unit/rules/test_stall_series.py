"""Rules on stalls are tested with what the qp exporter writes: silence of none but processes that are stopped."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fixtures.plugin.telemetry_file import TelemetryFile
from tests.unit.rules.test_promtool import PROMTOOLS, run

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.plugin_ipc.telemetry import PluginTelemetryReader, Table
from fabricpulse.qp import metrics
from fabricpulse.qp.aggregate import Aggregator
from fabricpulse.qp.expose import SILENT_S, expose

ROOT = Path(__file__).parents[3]
PEER_SEND = 3
WAITED_S = 8.0


def values_of(notation: str) -> list[float | None]:
    """What promtool makes of `values`, None where there is no sample. Raises ValueError for what it does not know."""
    found: list[float | None] = []
    for part in notation.split():
        match = re.fullmatch(r"(_|stale|[-+.e\d]+?)(?:([-+][.\d]+))?(?:x(\d+))?", part)
        if match is None:
            raise ValueError(part)
        first, step, more = match.groups()
        # `_x3` are three, `0x3` four.
        count = int(more or 0) + (first != "_" or more is None)
        none = first in {"_", "stale"}
        found += [None if none else float(first) + number * float(step or 0) for number in range(count)]
    return found


def cases_of_processes() -> Iterator[tuple[str, dict[str, list[float | None]]]]:
    """(file and name, series -> values) of each case of promtool that has series of processes."""
    for path in sorted((ROOT / "rules" / "tests").glob("**/*.yaml")):
        text = path.read_text()
        if metrics.PLUGIN_SILENT.name in text:
            for case in yaml.safe_load(text)["tests"]:
                given = {str(s["series"]): str(s["values"]) for s in case["input_series"]}
                yield (
                    f"{path.stem}: {case['name']}",
                    {name: values_of(v) for name, v in given.items() if "fabricpulse_plugin_" in name},
                )


def test_cases_give_no_silence_that_the_exporter_does_not_write() -> None:
    """A process is called silent from SILENT_S on, and has the same age as heartbeat."""
    found = 0
    for case, series in cases_of_processes():
        for name, values in series.items():
            if name.startswith(metrics.PLUGIN_SILENT.name):
                ages = series.get(name.replace(metrics.PLUGIN_SILENT.name, metrics.HEARTBEAT_AGE.name), [])
                wrong = [
                    (value, age)
                    for value, age in zip(values, [*ages, *[None] * len(values)], strict=False)
                    if value is not None and not SILENT_S < value == age
                ]
                assert wrong == [], case
                found += 1
    assert found >= 5


def exposed(folder: Path, host: int, waits_for: int | None, beat_s: float = 0.0) -> dict[str, str]:
    """Series -> value that the qp exporter of a host shows whose one rank waits for that of another host, or for none.

    beat_s : age of its heartbeat.
    """
    folder.mkdir()
    file = TelemetryFile(folder, 100, "42", rank=host)
    file.beat(beat_s)
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    if waits_for is not None:
        posted = int((now - WAITED_S) * 1e9)
        file.put(
            Table.CONNECTIONS,
            0,
            state=1,
            peer=f"h{waits_for}".encode(),
            peer_rank=waits_for,
            waits_for=PEER_SEND,
            oldest_request_mono_ns=posted,
            last_progress_mono_ns=posted,
        )
    aggregator = Aggregator(forget_after_s=300, worst_count=2, worst_owd_s=0.005, waiting_s=1.0)
    aggregator.take([PluginTelemetryReader(file.path).read()], [], now, interval=True)
    exposition = Exposition()
    expose(aggregator, 0, exposition)
    lines = [line for line in exposition.render().decode().splitlines() if not line.startswith("#")]
    return {
        name.replace("{", f'{{job="q",instance="h{host}",'): value
        for name, _, value in (line.rpartition(" ") for line in lines)
        if "{" in name
    }


@pytest.mark.prometheus
@pytest.mark.parametrize(("beat_s", "head"), [(0.1, "rank"), (7.5, "process")])
def test_who_waits_for_nobody_is_named_by_what_the_exporter_writes(
    tmp_path: Path, beat_s: float, head: str
) -> None:
    """A ring whose rank 1 lives and has not entered; and one whose rank 1 is stopped. Each is one alert."""
    if PROMTOOLS[0] is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    series = exposed(tmp_path / "h0", 0, 2) | exposed(tmp_path / "h2", 2, 1)
    series |= exposed(tmp_path / "h1", 1, None, beat_s)
    alert = f'{{workload="42",head="{head}",rank="1",peer="h1"}}'
    expected = {
        "expr": 'count by (workload, head, rank, peer) (ALERTS{alertname="FabricCollectiveStalled"})',
        "eval_time": "15s",
        "exp_samples": [{"labels": alert, "value": 1}],
    }
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": f"{value}x1"} for name, value in series.items()],
        "promql_expr_test": [expected],
    }
    content = {
        "rule_files": [str(ROOT / "rules" / "alerts" / "job.yaml")],
        "evaluation_interval": "15s",
        "tests": [case],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(content))

    result = run(PROMTOOLS[0], "test", "rules", tmp_path / "case.yaml")

    assert result.returncode == 0, result.stdout + result.stderr
