"""A process inside the lab, held by its pidfd: signals never hit another process that has got its number."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fabricpulse.core.errors import UserError


class LabProcess:
    """A running or ended process of a node.

    pid : inside the lab, as in `<run>/plugin/<pid>-*.sock`. log : where its output goes, or None.
    """

    def __init__(
        self, node: str, name: str, argv: Sequence[str], pid: int, pidfd: int, log: Path | None
    ) -> None:
        self.node = node
        self.name = name
        self.argv = tuple(argv)
        self.pid = pid
        self.log = log
        self._pidfd = pidfd
        self._outer_pid = pid_of(pidfd)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._code: int | None = None
        self.ended_ns: int | None = None

    @property
    def outer_pid(self) -> int:
        """PID outside the lab, for ps and gdb."""
        return self._outer_pid

    @property
    def returncode(self) -> int | None:
        """As of subprocess: None while it runs, minus the signal's number if one ended it."""
        return self._code

    def poll(self) -> int | None:
        """`returncode`."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.argv, timeout or 0.0)
        return self._exit_code()

    def send_signal(self, signum: int) -> None:
        """Sends a signal; does nothing once the process has ended."""
        with self._lock, suppress(ProcessLookupError):
            if self._code is None:
                signal.pidfd_send_signal(self._pidfd, signum)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what a crash looks like."""
        self.send_signal(signal.SIGKILL)

    def suspend(self) -> None:
        """SIGSTOP: what a stall looks like. Returns once the process stands still."""
        self.send_signal(signal.SIGSTOP)
        while self._code is None and self._state() not in "TtZX":
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def stop(self, timeout: float = 5.0) -> int:
        """SIGTERM, then SIGKILL after `timeout` seconds; returns the exit code."""
        self.terminate()
        self.resume()
        try:
            return self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait(10)

    def output(self) -> str:
        """What it has written to its log so far."""
        return self.log.read_text(errors="replace") if self.log is not None and self.log.exists() else ""

    def wait_for_output(self, text: str, timeout: float = 60.0) -> None:
        """Returns once `text` is in the log. Raises UserError, with the log's end, if it ends first or time is up."""
        deadline = time.monotonic() + timeout
        while text not in self.output():
            if self._ended.wait(0.02) and text not in self.output():
                raise UserError(
                    f"{self.describe()} ended with {self._code} before it wrote {text!r}: {self.tail()}"
                )
            if time.monotonic() > deadline:
                raise UserError(f"{self.describe()} has not written {text!r} in {timeout:g} s: {self.tail()}")

    def tail(self, characters: int = 2000) -> str:
        """The end of its log."""
        return self.output()[-characters:].strip()

    def describe(self) -> str:
        """`mesh on h0`."""
        return f"{self.name} on {self.node}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self._code is None else f"ended {self._code}"
        return f"<LabProcess {self.describe()} pid {self.pid} {state}>"

    def _state(self) -> str:
        try:
            text = Path(f"/proc/{self._outer_pid}/stat").read_text()
        except OSError:
            return "X"
        return text.rpartition(")")[2].split()[0]

    def _exit_code(self) -> int:
        if self._code is None:
            raise RuntimeError(f"{self.describe()} still runs")
        return self._code

    def _set_ended(self, code: int, at_ns: int) -> None:
        with self._lock:
            self._code = code
            self.ended_ns = at_ns
            os.close(self._pidfd)
        self._ended.set()


def pid_of(pidfd: int) -> int:
    """PID, as this process sees it, of the process behind a pidfd; -1 once that has been reaped."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return -1
