"""The table of reports keeps the last report of each host with its edges, however reports come."""

import numpy as np
import pytest

from fabricpulse.clocksync.wire.messages import EDGE_DTYPE, PROTOCOL, RoundReport
from fabricpulse.clocksync.wire.report_table import ROW_DTYPE, Records, ReportTable

_SLOTS = 12


def _records(rng: np.random.Generator, count: int) -> Records:
    records: Records = np.zeros(count, EDGE_DTYPE)
    records["offset_ns"] = rng.integers(0, 1 << 40, count)
    return records


@pytest.mark.parametrize("seed", range(30))
def test_the_last_report_of_each_host_is_kept(seed: int) -> None:
    """By datagrams, by HTTP, or both, of all hosts or some; and those that are dropped leave with their edges."""
    rng, table = np.random.default_rng(seed), ReportTable()
    kept: dict[int, tuple[int, list[int]]] = {}
    for moment in range(8):
        arrived = None
        if rng.random() < 0.8:
            slots = np.arange(_SLOTS) if rng.random() < 0.5 else rng.integers(0, _SLOTS, rng.integers(0, 20))
            rows = np.zeros(len(slots), ROW_DTYPE)
            rows["slot"], rows["edges"] = slots, rng.integers(0, 5, len(slots))
            rows["host_ns"] = 1_000 * moment + np.arange(len(slots))
            records = _records(rng, int(rows["edges"].sum()))
            arrived, ends = (rows, records), np.cumsum(rows["edges"])
            for row, end in zip(rows, ends.tolist(), strict=True):
                its = records["offset_ns"][end - row["edges"] : end].tolist()
                kept[int(row["slot"])] = int(row["host_ns"]), its
        for number in range(int(rng.integers(0, 4))):
            slot, records = int(rng.integers(_SLOTS)), _records(rng, int(rng.integers(0, 5)))
            host_ns = 1_000 * moment + 100 + number
            report = RoundReport(PROTOCOL, "host", 1, 1, host_ns, records.tobytes(), None, None, "", 0, None)
            table.add(slot, report, float(moment))
            kept[slot] = host_ns, records["offset_ns"].tolist()
        table.settle(_SLOTS, arrived)
        which = rng.random(len(table.rows)) < 0.9
        for slot in table.rows["slot"][~which].tolist():
            del kept[slot]
        table.keep(which)
        ends = np.cumsum(table.rows["edges"])
        found = {
            int(row["slot"]): (
                int(row["host_ns"]),
                table.records["offset_ns"][end - row["edges"] : end].tolist(),
            )
            for row, end in zip(table.rows, ends.tolist(), strict=True)
        }
        assert found == kept
        assert len(table.rows) == len(found)
