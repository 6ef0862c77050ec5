"""What plugin and interposer read alike in the environment (core/native/job/environment.h)."""

import json
import socket
import subprocess
from typing import Any

import pytest
from tests.fixtures.native.programs import native

UNKNOWN = -1


def read(**environment: str) -> dict[str, Any]:
    done = subprocess.run([native("job_environment")], env=environment, capture_output=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_an_empty_environment_has_defaults() -> None:
    """Nothing is known of the job, and nobody complains."""
    assert read(FABRICPULSE_RANK="", RANK="", FABRICPULSE_HOST="") == {
        "run_dir": "/run/fabricpulse",
        "host": socket.gethostname(),
        "workload": "unknown",
        "rank": UNKNOWN,
        "telemetry": True,
        "number": 0,
        "complaint": "",
    }


def test_our_own_variables_come_before_the_launchers() -> None:
    """And what is set says what it says."""
    said = read(
        FABRICPULSE_RUN_DIR="/var/run/fp",
        FABRICPULSE_HOST="gpu7",
        FABRICPULSE_WORKLOAD="llama",
        SLURM_JOB_ID="4711",
        FABRICPULSE_RANK="3",
        RANK="5",
        SLURM_PROCID="6",
        FABRICPULSE_TELEMETRY="0",
    )
    names = ("run_dir", "host", "workload", "rank", "telemetry", "complaint")
    assert [said[name] for name in names] == ["/var/run/fp", "gpu7", "llama", 3, False, ""]
    assert read(SLURM_JOB_ID="4711")["workload"] == "4711"


@pytest.mark.parametrize(
    "name", ["FABRICPULSE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"]
)
def test_launchers_say_the_rank(name: str) -> None:
    """One variable each."""
    assert read(**{name: "4294967294"})["rank"] == 4294967294


@pytest.mark.parametrize("text", ["first", "-1", " 3", "3 ", "4294967295", "99999999999999999999999", "0x3"])
def test_what_is_no_rank_is_unknown_and_said(text: str) -> None:
    """No other process's rank is taken in its place: not the nearest number, not another variable's."""
    said = read(FABRICPULSE_RANK=text, RANK="2")
    assert (said["rank"], said["complaint"]) == (
        UNKNOWN,
        f"FABRICPULSE_RANK={text} is no rank; it is unknown. ",
    )


@pytest.mark.parametrize(
    ("text", "number", "complaint"),
    [
        ("10", 10_000, ""),
        ("20", 20_000, ""),
        ("9", 10_000, "NUMBER=9 is out of range; 10 is used. "),
        ("21", 20_000, "NUMBER=21 is out of range; 20 is used. "),
        ("-15", 0, "NUMBER=-15 is not a number; the default stands. "),
        (" -15", 0, "NUMBER= -15 is not a number; the default stands. "),
        ("15x", 0, "NUMBER=15x is not a number; the default stands. "),
    ],
)
def test_numbers_have_a_range(text: str, number: int, complaint: str) -> None:
    """Out of range: the nearest allowed. No number: what was there before."""
    said = read(NUMBER=text)
    assert (said["number"], said["complaint"]) == (number, complaint)
