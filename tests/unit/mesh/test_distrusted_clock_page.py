"""A page that delays contradict: the engine leaves it until its writer has taken notice, or is another one."""

import subprocess
import time
from pathlib import Path

from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus, raw_now_ns

ROOT = Path(__file__).parents[3]


def test_a_page_is_not_distrusted_for_ever(tmp_path: Path) -> None:
    """The sidecar was dead when delays contradicted the page. Its successor goes on with the same count of disruptions,
    and was never reported: after ten seconds the page is judged again.
    """
    program = tmp_path / "distrust"
    folders = [f"-I{ROOT / folder}" for folder in ("core/include", "exporters/probe_engine")]
    sources = [
        ROOT / "tests/native/probes/fleet_clock_distrust.cc",
        ROOT / "exporters/probe_engine/clocks/fleet_clock_reader.cc",
    ]
    subprocess.run(["c++", "-std=c++17", "-O1", *folders, *sources, "-o", program], check=True)
    now = raw_now_ns()
    line, stamps = ClockLine(now, time.time_ns(), 0), ClockLine(time.time_ns(), now, 0)
    ClockPageWriter(tmp_path / "clock").write(
        ClockPage(
            ClockStatus.HOLDOVER,
            line,
            line,
            now,
            2_000,
            250,
            now + 600 * 10**9,
            stamps,
            stamps,
            0,
            0,
            disruptions=3,
        )
    )
    done = subprocess.run([program, tmp_path / "clock"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0", "0", "1"]
