"""The bench that plays the demo: it leaves no lab behind."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.bench.remediation import demo

# A program that ends in order when it is asked to.
PROGRAM = "trap 'echo ended > \"$0\"; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


class Impatient(subprocess.Popen[str]):
    """Its time is over as soon as it has begun."""

    ready = False

    def communicate(self, *given: Any, **named: Any) -> tuple[str, str]:
        if self.ready:
            return super().communicate(*given, **named)
        self.ready = True
        assert self.stdout is not None
        assert self.stdout.readline() == "ready\n"
        raise subprocess.TimeoutExpired(self.args, named["timeout"])


def test_a_demo_that_takes_too_long_ends_its_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed, and its namespaces and daemons stayed."""
    monkeypatch.setattr(subprocess, "Popen", Impatient)
    ended = tmp_path / "ended"
    with pytest.raises(subprocess.TimeoutExpired):
        demo.run_to_end(["sh", "-c", PROGRAM, str(ended)], 1.0)
    assert ended.read_text() == "ended\n"


def test_what_it_writes_is_returned() -> None:
    """For the message where it has no result."""
    assert demo.run_to_end(["sh", "-c", "echo out; echo err >&2"], 60.0) == "out\nerr\n"
