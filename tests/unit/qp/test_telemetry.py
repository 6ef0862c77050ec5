"""The reader never gives out a torn record, and refuses files that are not its layout."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.plugin.telemetry_file import TelemetryFile
from tests.fixtures.waiting import Patience

from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.plugin_ipc.telemetry import PluginTelemetryReader, Table, TornReadError, text

ROOT = Path(__file__).parents[3]


def test_only_records_in_use_are_given_out(tmp_path: Path) -> None:
    """Free slots are left out, and each record keeps the number of its slot."""
    file = TelemetryFile(tmp_path)
    file.lane(3, 1, "h2", sent_bytes=7)
    snapshot = PluginTelemetryReader(file.path).read()
    assert snapshot.device_names() == {0: "rail0", 1: "rail1"}
    assert snapshot.slots[Table.LANES].tolist() == [3]
    assert text(snapshot.tables[Table.LANES][0]["peer"]) == "h2"
    assert snapshot.workload == "train-7"


def test_longer_records_of_a_newer_writer_are_read(tmp_path: Path) -> None:
    """A writer may have added fields at the end of its records."""
    file = TelemetryFile(tmp_path, slack=64)
    file.lane(0, 0, "h1", sent_bytes=1)
    file.lane(1, 1, "h1", sent_bytes=2)
    lanes = PluginTelemetryReader(file.path).read().tables[Table.LANES]
    assert lanes["sent_bytes"].tolist() == [1, 2]


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_no_record_is_torn_while_the_writer_works(tmp_path: Path) -> None:
    """Fields that another process changes together, without pause, are always seen together."""
    file = TelemetryFile(tmp_path)
    file.lane(0, 0, "h1")
    program = tmp_path / "writer"
    includes = [f"-I{ROOT / part / 'include'}" for part in ("core", "nccl_plugin")]
    source = ROOT / "tests" / "native" / "job" / "telemetry_writer.cc"
    subprocess.run(["c++", "-std=c++17", "-O2", *includes, source, "-o", program], check=True)
    reader = PluginTelemetryReader(file.path)
    with subprocess.Popen([program, file.path]) as writer:
        try:
            seen: set[int] = set()
            patience = Patience(5)
            while len(seen) < 300 and patience.left():
                lane = reader.read().tables[Table.LANES][0]
                values = {int(lane[name]) for name in ("sent_bytes", "received_bytes", "rtt_ns")}
                assert len(values) == 1
                seen |= values
        finally:
            writer.kill()
    assert len(seen) >= 300


@pytest.mark.parametrize("where", ["tables", "record"])
def test_a_writer_that_died_in_a_change_is_an_error_not_a_hang(tmp_path: Path, where: str) -> None:
    """A sequence that stays odd ends the read with an error within a moment."""
    file = TelemetryFile(tmp_path)
    file.lane(0, 0, "h1")
    if where == "tables":
        file.header["tables_sequence"] = 5
    else:
        file.tables[Table.LANES]["sequence"][0] = 5
    with pytest.raises(TornReadError, match="died"):
        PluginTelemetryReader(file.path).read()


def test_another_layout_is_refused(tmp_path: Path) -> None:
    """Other magic, other version, a short file, and tables that leave the file are refused, never misread."""
    for spoil in ("magic", "version", "short", "table"):
        file = TelemetryFile(tmp_path)
        if spoil == "table":
            file.header["tables"]["capacity"][0][Table.LANES] = 1 << 20
        elif spoil == "short":
            file.path.write_bytes(b"\0" * 100)
        else:
            file.header[spoil] = 99
        with pytest.raises(LayoutError):
            PluginTelemetryReader(file.path)
        file.path.unlink()


def test_counters_beyond_32_bit_survive(tmp_path: Path) -> None:
    """Bytes are 64-bit from end to end."""
    file = TelemetryFile(tmp_path)
    file.lane(0, 0, "h1", sent_bytes=np.uint64(2**63 + 5))
    lane = PluginTelemetryReader(file.path).read().tables[Table.LANES][0]
    assert int(lane["sent_bytes"]) == 2**63 + 5
