"""What is known of paths (nccl_plugin/src/core/path_table.h), in simulated time."""

import random
import subprocess

import pytest
from tests.fixtures.native.programs import native


def play(lines: list[str]) -> list[int]:
    """What the table answers to each line (tests/native/plugin/path_table.cc)."""
    program = native("plugin_path_table", "address")
    said = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    return list(map(int, said.stdout.split()))


@pytest.mark.parametrize("spread", ["consecutive", "random"])
def test_paths_of_a_large_job_are_remembered(spread: str) -> None:
    """Eight NICs here, eight of each of 31 peers there: 1,984 paths, each with its own finding, in a subnet's
    consecutive addresses or in any. A table of sets may lose a few of those whose set is full."""
    dice = random.Random(7)
    addresses = [dice.getrandbits(64) if spread == "random" else 10_000 + i for i in range(248)]
    paths = [(nic, address) for nic in range(8) for address in addresses]
    notes = [f"s {nic} {address} 1 {1 + i}" for i, (nic, address) in enumerate(paths)]
    asked = [f"g {nic} {address} 2" for nic, address in paths]
    found = play(notes + asked)[len(paths) :]
    assert sum(value == 1 + i for i, value in enumerate(found)) >= 0.98 * len(paths)


def test_no_finding_is_another_paths() -> None:
    """However many paths there are: what is found is what was said of this one, or nothing; the newest are there."""
    paths = [(nic, 77 * address) for nic in range(4) for address in range(3000)]
    notes = [f"s {nic} {address} {1 + i} {1 + i}" for i, (nic, address) in enumerate(paths)]
    asked = [f"g {nic} {address} {len(paths) + i}" for i, (nic, address) in enumerate(reversed(paths))]
    found = play(notes + asked)[: len(paths) - 1 : -1]
    assert all(value in (0, 1 + i) for i, value in enumerate(found))
    assert found[-100:] == list(range(len(paths) - 99, len(paths) + 1))


def test_the_path_in_use_stays() -> None:
    """One that is asked about again and again is there still after 10,000 others have come."""
    lines = ["s 0 1 1 42"]
    for other in range(10_000):
        lines += [f"s 0 {2 + other} {2 + other} 7", f"g 0 1 {2 + other}"]
    assert set(play(lines)[2::2]) == {42}
