"""Control sockets of the plugin in the processes of this host. Blocking; the agent calls it off its loop."""

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabricpulse.plugin_ipc.control import ControlClient, ControlError
from fabricpulse.plugin_ipc.process import is_gone
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.node.survey import Survey, nics_of
from fabricpulse.remediation.protocol import DesiredNic, Result

_POLL_S = 0.02
_AT_ONCE = 16
# Without its connections: those of a large job do not fit into one message.
_STATUS = {"op": "status", "connections": False}


@dataclass
class _Answers:
    """What the processes said to one operation, by process."""

    followed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class Plugins:
    """All plugin processes below one directory. One thread at a time."""

    def __init__(self, directory: Path, call_timeout_s: float, verify_timeout_s: float) -> None:
        self._directory = directory
        self._call_timeout_s = call_timeout_s
        self._verify_timeout_s = verify_timeout_s
        # A process that hangs must not hold up the others of its host.
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="control")
        self.calls: Counter[str] = Counter()

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def present(self) -> dict[str, tuple[int, int]]:
        """Control sockets that are there now: name -> what tells one process from the next with the same pid.

        Anything else under that name - a file, a link that somebody has put there - is passed over.
        """
        found = {}
        for path in sorted(self._directory.glob("*.sock")):
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                found[path.stem] = (status.st_ino, status.st_ctime_ns)
        return found

    def survey(self) -> Survey:
        """Asks every process for its state; one that does not answer is left out: its socket outlives a killed one."""
        answers = self._ask_all(self.present(), _STATUS)
        return Survey({name: answer for name, answer in answers.items() if isinstance(answer, dict)})

    def apply(self, nic: DesiredNic, names: Iterable[str] | None = None) -> Result:
        """Brings processes (all of them by default) to the desired state of one NIC and checks that they show it.

        A process that does not use the NIC has nothing to do. One that hangs is not waited for: it moves no traffic
        either, and it is asked again when it answers again.
        """
        failpoints.reach("agent.before_apply")
        answers = self._order(nic, self.present() if names is None else list(names))
        failpoints.reach("agent.after_apply")
        if answers.refused:
            name, reason = next(iter(answers.refused.items()))
            return Result(nic.op_id, "refused", len(answers.followed), f"pid {name}: {reason}"[:500])
        missing = self._wait_until_shown(answers.followed, nic)
        shown = len(answers.followed) - len(missing)
        if missing or (answers.silent and not shown):
            reason = (
                f"not shown within {self._verify_timeout_s:g} s by pid {', '.join(missing)}; "
                if missing
                else ""
            )
            reason += "; ".join(answers.silent.values())
            return Result(nic.op_id, "failed", shown, reason[:500])
        message = f"no answer: {'; '.join(answers.silent.values())}"[:500] if answers.silent else ""
        return Result(nic.op_id, "applied", shown, message)

    def _order(self, nic: DesiredNic, names: Iterable[str]) -> _Answers:
        op = "nic.avoid" if nic.desired == "avoid" else "nic.restore"
        request = {"op": op, "op_id": nic.op_id, "generation": nic.generation, "device": nic.device}
        answers = _Answers()
        for name, answer in self._ask_all(names, request).items():
            if isinstance(answer, ControlError):
                if not self._is_gone(name):
                    self.calls["error"] += 1
                    answers.silent[name] = str(answer)
                continue
            if answer.get("ok") is True:
                self.calls["duplicate" if answer.get("result") == "duplicate" else "applied"] += 1
                answers.followed.append(name)
                continue
            problem = answer.get("error")
            problem = problem if isinstance(problem, dict) else {}
            code = str(problem.get("code", "unknown"))
            self.calls[code if code in CALL_RESULTS else "error"] += 1
            if code == "stale_generation":
                # A newer decision has reached this process; what counts is what it shows.
                answers.followed.append(name)
            elif code == "busy":
                answers.silent[name] = f"pid {name}: busy"
            elif code != "unknown_device":
                answers.refused[name] = str(problem.get("message", code))
        return answers

    def _wait_until_shown(self, names: list[str], nic: DesiredNic) -> list[str]:
        deadline = time.monotonic() + self._verify_timeout_s
        wanted = nic.desired == "avoid"
        missing = list(names)
        while True:
            answers = self._ask_all(missing, _STATUS)
            still = []
            for name, answer in answers.items():
                if isinstance(answer, ControlError):
                    if not self._is_gone(name):
                        still.append(name)
                    continue
                seen = nics_of(answer).get(nic.device)
                if seen is not None and seen.avoided != wanted:
                    still.append(name)
            missing = still
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(_POLL_S)

    def _ask_all(
        self, names: Iterable[str], message: dict[str, Any]
    ) -> dict[str, dict[str, Any] | ControlError]:
        names = list(names)
        if len(names) == 1:
            return {names[0]: self._call(names[0], message)}
        return dict(zip(names, self._pool.map(lambda name: self._call(name, message), names), strict=True))

    def _call(self, name: str, message: dict[str, Any]) -> dict[str, Any] | ControlError:
        path = self._directory / f"{name}.sock"
        try:
            owner = os.lstat(path).st_uid
            with ControlClient(path, self._call_timeout_s) as client:
                # The owner of the socket, or root: anybody else has squatted the name.
                if client.peer_uid not in (owner, 0):
                    return ControlError(f"pid {name}: served by uid {client.peer_uid}, owned by uid {owner}")
                return client.call(message)
        except OSError as error:
            return ControlError(f"pid {name}: {error.strerror or error}")
        except ControlError as error:
            return ControlError(f"pid {name}: {str(error).removeprefix(f'{path}: ')}")

    def _is_gone(self, name: str) -> bool:
        """True when nobody can be behind the socket any more."""
        path = self._directory / f"{name}.sock"
        try:
            with ControlClient(path, 0.2):
                return False
        except ControlError:
            return not path.exists() or is_gone(path)


CALL_RESULTS = (
    "applied",
    "duplicate",
    "stale_generation",
    "last_healthy_lane",
    "unknown_device",
    "bad_request",
    "denied",
    "busy",
    "error",
)
