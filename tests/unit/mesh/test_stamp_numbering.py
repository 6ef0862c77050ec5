"""TX stamps are known by their number alone: where the kernel counts on, the engine begins anew."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_no_packet_gets_the_stamp_of_another_one_for_long(tmp_path: Path) -> None:
    """A device that drops a packet uses up its number. Each later packet of that source port got the stamp of the one
    before it: its host was said to be microseconds slow, for ever.
    """
    program = tmp_path / "numbering"
    sources = [
        ROOT / "tests/native/probes/stamp_numbering.cc",
        ROOT / "exporters/probe_engine/probe_socket.cc",
    ]
    includes = f"-I{ROOT / 'exporters/probe_engine'}"
    subprocess.run(["c++", "-std=c++17", "-O0", includes, *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0", "1", "1"]
