"""What every part of a lab stands on: the line to the supervisor, the processes of the nodes, faults in force."""

import itertools
import os
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from fabricpulse.core.errors import UserError
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.shm.virtual_clock import ENV as CLOCK_ENV
from fabricpulse.lab.channel import Channel, LabClosedError
from fabricpulse.lab.clocks import HostClock
from fabricpulse.lab.fabric import Fabric
from fabricpulse.lab.process import LabProcess

# Of the parent's environment, what would be wrong inside: proxies that cannot be reached, a service manager that is
# not theirs, a clock and a run directory of another host.
_NOT_INHERITED = {"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", RUN_DIR_ENV, CLOCK_ENV}


class Undoable(Protocol):
    """A fault in force, as the runtime keeps it."""

    def undo(self) -> None:
        """Mends it."""


class LabRuntime:
    """The lower half of `Lab`: programs run in nodes here.

    fabric : the plan. clocks : of the hosts, by name. faults_in_force : oldest first; faults enter and leave it
    themselves.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.clocks: dict[str, HostClock] = {}
        self.faults_in_force: list[Undoable] = []
        self._directory: Path | None = None
        self._channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._ended = False
        self._process_lock = threading.Lock()
        self._processes: dict[int, LabProcess] = {}
        self._early_exits: dict[int, tuple[int, int]] = {}

    @property
    def directory(self) -> Path:
        """Where the lab keeps its files: `<directory>/h0/{run,log,virtual-clock}`."""
        if self._directory is None:
            raise LabClosedError("the lab has not been started")
        return self._directory

    @property
    def supervisor_pid(self) -> int:
        """PID of the lab's supervisor; the lab ends with it."""
        if self._channel is None:
            raise LabClosedError("the lab has not been started")
        return self._channel.supervisor_pid

    def require_node(self, name: str) -> None:
        """Raises UserError unless the lab has a node of this name."""
        if name not in self.fabric.nodes:
            raise UserError(f"the lab has no node {name!r}; it has {', '.join(self.fabric.nodes)}")

    def popen(
        self,
        node: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        cwd: Path | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> LabProcess:
        """Starts a program in a node. Without stdout, output goes to `<directory>/<node>/log/<name>.log` (appended).

        env : on top of this process's environment without proxies, with the node's FABRICPULSE_RUN_DIR and (on a
        host) FABRICPULSE_VIRTUAL_CLOCK. Raises UserError when the program cannot be started.
        """
        self.require_node(node)
        command = [os.fspath(part) for part in argv]
        name = name or Path(command[0]).name
        log = self.directory / node / "log" / f"{name}.log" if stdout is None else None
        opened: list[int] = []

        def descriptor(given: int | IO[Any] | None, default: Path, flags: int) -> int:
            if given is None or given == subprocess.DEVNULL:
                path = default if given is None else Path(os.devnull)
                opened.append(os.open(path, flags | os.O_CLOEXEC, 0o644))
                return opened[-1]
            return given if isinstance(given, int) else given.fileno()

        write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            standard = [descriptor(stdin, Path(os.devnull), os.O_RDONLY)]
            standard.append(descriptor(stdout, log or Path(os.devnull), write))
            merged = stderr is None or stderr == subprocess.STDOUT
            standard.append(standard[1] if merged else descriptor(stderr, Path(os.devnull), write))
            if node in self.clocks:
                self.clocks[node].mark_in_use()
            answer, (pidfd,) = self.request(
                "spawn",
                descriptors=standard,
                node=node,
                argv=command,
                env=self.environment(node, env),
                cwd=str(cwd or Path.cwd()),
            )
        except LabClosedError:
            raise
        except OSError as error:
            raise UserError(f"cannot start {command[0]} on {node}: {error.strerror or error}") from error
        finally:
            for number in opened:
                os.close(number)
        process = LabProcess(node, name, command, answer["pid"], pidfd, log)
        with self._process_lock:
            early = self._early_exits.pop(process.pid, None)
            if early is None and self._ended:
                early = (-signal.SIGKILL, time.time_ns())
            if early is None:
                self._processes[process.pid] = process
        if early is not None:
            process._set_ended(*early)
        return process

    def run(
        self,
        node: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: str = "",  # noqa: A002 - as in subprocess.run
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in a node to its end; as subprocess.run with text and captured output.

        Raises UserError when it fails (with `check`) or takes longer than `timeout` seconds.
        """
        with (
            tempfile.TemporaryFile("w+") as stdin,
            tempfile.TemporaryFile("w+") as stdout,
            tempfile.TemporaryFile("w+") as stderr,
        ):
            stdin.write(input)
            stdin.seek(0)
            process = self.popen(node, argv, env=env, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
                raise UserError(f"{process.describe()} has not ended in {timeout:g} s") from None
            texts = []
            for stream in (stdout, stderr):
                stream.seek(0)
                texts.append(stream.read())
        if check and code != 0:
            raise UserError(f"{process.describe()} ended with {code}: {(texts[1] or texts[0]).strip()}")
        return subprocess.CompletedProcess(list(process.argv), code, texts[0], texts[1])

    def environment(self, node: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a process on `node`."""
        env = {
            key: value
            for key, value in os.environ.items()
            if key not in _NOT_INHERITED and not key.lower().endswith("_proxy")
        }
        # `fabricpulse`, and tools such as ip that live in sbin.
        parts = [sysconfig.get_path("scripts"), *env.get("PATH", os.defpath).split(":"), "/usr/sbin", "/sbin"]
        env["PATH"] = ":".join(dict.fromkeys(parts))
        env |= self.own_environment(node)
        env["PYTHONUNBUFFERED"] = "1"
        env.update(extra or {})
        return env

    def own_environment(self, node: str) -> dict[str, str]:
        """What the environment of a node has that no other's has."""
        env = {RUN_DIR_ENV: str(self.directory / node / "run")}
        if node in self.clocks:
            env[CLOCK_ENV] = str(self.clocks[node].path)
        return env

    def processes_of(self, node: str) -> list[LabProcess]:
        """The processes started on `node` that still run."""
        with self._process_lock:
            return [process for process in self._processes.values() if process.node == node]

    # For the parts of this package

    def request(
        self, op: str, descriptors: Sequence[int] = (), **fields: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Channel.request of the running lab."""
        if self._channel is None:
            raise LabClosedError("the lab has not been started")
        return self._channel.request(op, list(descriptors), **fields)

    def batch(self, node: str, tool: str, lines: list[str]) -> str:
        """Runs lines of `ip`, `ip6`, `tc` or `nft` in a node; returns their output. Raises UserError."""
        answer, _ = self.request("batch", node=node, tool=tool, lines=lines)
        return str(answer["output"])

    def next_number(self) -> int:
        """A number that this lab has not given before."""
        return next(self._numbers)

    def _on_exit(self, pid: int, code: int, at_ns: int) -> None:
        with self._process_lock:
            process = self._processes.pop(pid, None)
            if process is None:
                self._early_exits[pid] = (code, at_ns)
        if process is not None:
            process._set_ended(code, at_ns)

    def _on_end(self) -> None:
        """The supervisor is gone, and the kernel has killed with it whatever still ran."""
        with self._process_lock:
            self._ended = True
            killed = list(self._processes.values())
            self._processes.clear()
        for process in killed:
            process._set_ended(-signal.SIGKILL, time.time_ns())
