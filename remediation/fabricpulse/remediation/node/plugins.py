"""Control sockets of the plugin in the processes of this host. Blocking; the agent calls it off its loop."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from fabricpulse.core.subordinate_ids import SubordinateIds
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.node.control_calls import Answer, Failure, call_all
from fabricpulse.remediation.node.kernel_nics import kernel_nics
from fabricpulse.remediation.node.sockets import ControlSockets, Identity
from fabricpulse.remediation.node.survey import Survey, nics_of
from fabricpulse.remediation.protocol import DesiredNic, LaneOrder, Result

_POLL_S = 0.02
# Without its connections: those of a large job do not fit into one message.
_STATUS = {"op": "status", "connections": False}


@dataclass
class _Answers:
    """Answers of the processes to one operation, by process."""

    followed: list[str] = field(default_factory=list)
    # Of these: has carried out this very operation before.
    known: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class Plugins:
    """All plugin processes below one directory. One thread at a time."""

    def __init__(
        self,
        directory: Path,
        call_timeout_s: float,
        verify_timeout_s: float,
        users: frozenset[int] = frozenset(),
    ) -> None:
        """users : whose processes count; empty for everybody's."""
        self._directory = directory
        self._verify_timeout_s = verify_timeout_s
        self._sockets = ControlSockets(directory, call_timeout_s, users, ids=SubordinateIds())
        self.calls: Counter[str] = Counter()

    def present(self) -> dict[str, Identity]:
        """See ControlSockets.present."""
        return self._sockets.present()

    def survey(self) -> Survey:
        """Asks the processes for their state; one that does not answer is left out, and asked again later."""
        self._sockets.present()
        answers = self._ask(self._sockets.due(), _STATUS)
        found = {name: answer for name, answer in answers.items() if isinstance(answer, dict)}
        return Survey(found, kernel_nics(), self._sockets.owners)

    def apply(self, nic: DesiredNic, names: Iterable[str] | None = None) -> Result:
        """Brings processes (all of them by default) to the desired state of one NIC and checks that they show it.

        names : processes that are known not to be in that state. A process that does not use the NIC has nothing to do.
        One that hangs is not waited for: it moves no traffic either, and it is asked again when it answers again.
        """
        failpoints.reach("agent.before_apply")
        answers = self._order(nic, list(self.present()) if names is None else list(names))
        if names is not None and nic.desired == "avoid":
            self._order_again(nic, answers)
        failpoints.reach("agent.after_apply")
        if answers.refused:
            name, reason = next(iter(answers.refused.items()))
            return Result(nic.op_id, "refused", len(answers.followed), f"pid {name}: {reason}"[:500])
        missing = self._wait_until_shown(answers.followed, nic)
        shown = len(answers.followed) - len(missing)
        silent = "; ".join(f"pid {name}: {reason}" for name, reason in answers.silent.items())
        if missing or (answers.silent and not shown):
            pids = ", ".join(missing)
            late = f"not shown within {self._verify_timeout_s:g} s by pid {pids}; " if missing else ""
            return Result(nic.op_id, "failed", shown, (late + silent)[:500])
        if names is None and self._sockets.unread:  # there may be processes that were not asked
            return Result(nic.op_id, "failed", shown, "the folder of control sockets cannot be read")
        message = f"no answer: {silent}"[:500] if answers.silent else ""
        return Result(nic.op_id, "applied", shown, message)

    def change_lane(self, order: LaneOrder) -> Result:
        """Carries out one operation on a lane of one process.

        `applied` says that the plugin has taken it: whether a new path comes about shows in the lane's telemetry.
        """
        request: dict[str, object] = {
            "op": order.operation,
            "op_id": order.op_id,
            "generation": order.generation,
            "connection": order.connection,
            "lane": order.lane,
            "entropy" if order.operation == "lane.repath" else "weight": order.value,
        }
        self.present()
        names = self._sockets.answering([order.process])
        answer = self._ask(names, request).get(order.process) if names else None
        if isinstance(answer, dict) and answer.get("ok") is True:
            self.calls["duplicate" if answer.get("result") == "duplicate" else "applied"] += 1
            return Result(order.op_id, "applied", 1)
        if isinstance(answer, dict):
            problem = answer.get("error")
            problem = problem if isinstance(problem, dict) else {}
            code = str(problem.get("code", "unknown"))
            self.calls[code if code in CALL_RESULTS else "error"] += 1
            return Result(order.op_id, "refused", 0, f"{code}: {problem.get('message', '')}"[:500])
        self.calls["error"] += 1
        reason = answer.reason if answer is not None else "it has not answered before"
        return Result(order.op_id, "failed", 0, f"pid {order.process}: {reason}"[:500])

    def _order(self, nic: DesiredNic, names: list[str]) -> _Answers:
        op = "nic.avoid" if nic.desired == "avoid" else "nic.restore"
        request = {"op": op, "op_id": nic.op_id, "generation": nic.generation, "device": nic.device}
        answers = _Answers()
        asked = self._sockets.answering(names)
        hanging = set(names) - set(asked)
        answers.silent = dict.fromkeys(sorted(hanging), "has not answered before")
        for name, answer in self._ask(asked, request).items():
            if isinstance(answer, Failure):
                if answer.kind != "gone":
                    self.calls["error"] += 1
                    answers.silent[name] = answer.reason
                continue
            if answer.get("ok") is True:
                is_known = answer.get("result") == "duplicate"
                self.calls["duplicate" if is_known else "applied"] += 1
                answers.followed.append(name)
                if is_known:
                    answers.known.append(name)
                continue
            problem = answer.get("error")
            problem = problem if isinstance(problem, dict) else {}
            code = str(problem.get("code", "unknown"))
            self.calls[code if code in CALL_RESULTS else "error"] += 1
            if code == "stale_generation":
                # A newer decision has reached this process; what counts is what it shows.
                answers.followed.append(name)
            elif code == "busy":
                answers.silent[name] = "busy"
            elif code != "unknown_device":
                answers.refused[name] = str(problem.get("message", code))
        return answers

    def _order_again(self, nic: DesiredNic, answers: _Answers) -> None:
        """Processes that took the NIC out once and have it back: another program did that by their sockets; a NIC is
        released at the receiver. A new operation, as a process carries out each but once.

        The other way round nothing is done again: a NIC that a person has taken out by hand stays out.
        """
        if not answers.known:
            return
        request = {"op": "nic.avoid", "generation": nic.generation, "device": nic.device}
        request["op_id"] = f"{nic.op_id[:100]}+{uuid4().hex[:12]}"
        for answer in self._ask(answers.known, request).values():
            ok = isinstance(answer, dict) and answer.get("ok") is True
            self.calls["applied" if ok else "error"] += 1

    def _wait_until_shown(self, names: list[str], nic: DesiredNic) -> list[str]:
        deadline = time.monotonic() + self._verify_timeout_s
        wanted = nic.desired == "avoid"
        missing = list(names)
        while True:
            still = []
            for name, answer in self._ask(missing, _STATUS).items():
                if isinstance(answer, Failure):
                    if answer.kind != "gone":
                        still.append(name)
                    continue
                seen = nics_of(answer).get(nic.device)
                if seen is not None and seen.avoided != wanted:
                    still.append(name)
            missing = still
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(_POLL_S)

    def _ask(self, names: Iterable[str], message: dict[str, object]) -> dict[str, Answer]:
        answers = call_all(self._directory, names, message, self._sockets.timeout_s)
        self._sockets.note(answers)
        return answers


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
