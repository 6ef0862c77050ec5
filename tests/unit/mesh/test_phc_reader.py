"""The clock of a NIC is read in the best way that works, and no longer given up for what passes."""

import errno
import subprocess

import pytest
from tests.fixtures.native.programs import native


@pytest.fixture(scope="module")
def read():
    program = native("phc_reader", "address")

    def run(case: str) -> tuple[int, int, int]:
        """(wrong readings, good ones, errno at the end)"""
        done = subprocess.run([program, case], capture_output=True, text=True, check=True, timeout=60)
        wrong, good, error = map(int, done.stdout.split())
        return wrong, good, error

    return run


@pytest.mark.parametrize("case", ["set", "plain_set"])
def test_a_clock_that_is_set_during_a_reading_costs_that_reading(read, case: str) -> None:
    """It was taken for "not supported": the NIC's stamps were gone until the engine was restarted."""
    assert read(case) == (0, 199, 0)


@pytest.mark.parametrize("error", [errno.ENODEV, errno.ETIMEDOUT, errno.EIO, errno.EBUSY])
def test_whatever_ails_the_best_way_the_next_one_is_tried(read, error: int) -> None:
    assert read(f"precise_{error}") == (0, 200, 0)


@pytest.mark.parametrize("error", [errno.ENODEV, errno.EIO])
def test_the_best_way_is_tried_again(read, error: int) -> None:
    """It had failed for a moment, or while the kernel ran by another clocksource; no reading is lost by that."""
    assert read(f"passes_{error}") == (0, 5100, 0)


def test_a_virtual_clock_is_read_by_what_its_driver_has(read) -> None:
    assert read("plain") == (0, 200, 0)


def test_in_a_time_namespace_the_real_time_clock_is_used(read) -> None:
    """PTP ioctls tell the raw clock of the first namespace, each time."""
    wrong, good, error = read("namespace")
    assert (wrong, error) == (0, 0)
    assert 150 < good < 200


def test_a_device_that_failed_in_every_way_is_tried_again(read) -> None:
    wrong, good, error = read("busy")
    assert (wrong, error) == (0, 0)
    assert good > 400


def test_a_device_that_is_gone_is_looked_for_again(read) -> None:
    wrong, good, error = read("gone")
    assert (wrong, error) == (0, errno.ENODEV)
    assert good > 400
