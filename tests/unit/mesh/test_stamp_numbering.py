"""TX stamps are known by their number alone: where the kernel may have counted on, we give the numbers, or none."""

import platform
import subprocess

import pytest
from tests.fixtures.native.programs import native
from tests.fixtures.ports import reserved_port


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("kernel", ["present", "old", "full"])
def test_no_packet_gets_the_stamp_of_another_one_for_long(address: str, kernel: str) -> None:
    """A device that drops a packet uses up its number. Each later packet of that source port got the stamp of the one
    before it: its host was said to be microseconds slow, for ever. That the kernel could not be asked, with no
    descriptor left, is not remembered as its answer.
    """
    arguments = [address] + ([kernel] if kernel != "present" else [])
    program = native("stamp_numbering", "address")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60)
    uncertain, own = done.stdout.split()[::2], done.stdout.split()[1::2]
    # After a drop; soon after the beginning; later; after a new beginning. Where the kernel takes no numbers from us,
    # what is sent while the numbering is uncertain has no stamps.
    if kernel == "old" or _takes_no_numbers():
        assert (uncertain, own) == (["1", "0", "1", "0"], ["0", "1", "0", "1"])
    else:
        assert (uncertain, own) == (["0", "0", "0", "0"], ["1", "1", "1", "1"])


def test_stamps_of_one_source_port_are_taken_alone() -> None:
    """Between two packets of a train, only those of the ports that send it are read; the others' are not lost."""
    program = native("port_stamps", "address")
    command = [str(program), "127.0.0.1", str(reserved_port())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["2", "|", "0", "1"]


def _takes_no_numbers() -> bool:
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor.split("-")[0])) < (6, 13)
