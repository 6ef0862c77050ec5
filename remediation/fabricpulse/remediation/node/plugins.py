"""The host's jobs, through the control sockets of the plugin in them. Blocking; the agent calls it off its loop."""

import os
import stat
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabricpulse.core.control_socket import ControlClient, ControlError
from fabricpulse.core.log import get_logger
from fabricpulse.remediation.protocol import DesiredNic, Result

log = get_logger(__name__)

_POLL_S = 0.02


@dataclass
class Survey:
    """What the jobs of the host look like. devices : NIC -> usable by at least one job. avoided : per socket."""

    sockets: dict[Path, dict[str, bool]] = field(default_factory=dict)
    devices: dict[str, bool] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """Processes that answered."""
        return len(self.sockets)


class Plugins:
    """All plugin processes below one directory."""

    def __init__(self, directory: Path, call_timeout_s: float, verify_timeout_s: float) -> None:
        self._directory = directory
        self._call_timeout_s = call_timeout_s
        self._verify_timeout_s = verify_timeout_s
        self.calls: Counter[str] = Counter()

    def sockets(self) -> list[Path]:
        """The control sockets that are there now; anything else under that name is passed over."""
        found = []
        for path in sorted(self._directory.glob("*.sock")):
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            if stat.S_ISSOCK(mode):
                found.append(path)
        return found

    def survey(self) -> Survey:
        """Asks every process for its state; a process that does not answer is left out."""
        survey = Survey()
        for path in self.sockets():
            try:
                answer = self._call(path, {"op": "status"})
            except ControlError:
                continue  # gone, or going: its socket outlives a killed process
            avoided = {}
            for device in answer.get("devices", []):
                name = device.get("device", "")
                avoided[name] = bool(device.get("avoided"))
                usable = device.get("link") != "down" and not avoided[name]
                survey.devices[name] = usable or survey.devices.get(name, False)
            survey.sockets[path] = avoided
        return survey

    def apply(self, nic: DesiredNic) -> Result:
        """Brings every process to the desired state of one NIC and checks that it shows.

        A process that does not use the NIC has nothing to do and counts as done.
        """
        op = "nic.avoid" if nic.desired == "avoid" else "nic.restore"
        done: list[Path] = []
        refused: list[str] = []
        failed: list[str] = []
        for path in self.sockets():
            request = {"op": op, "op_id": nic.op_id, "generation": nic.generation, "device": nic.device}
            try:
                answer = self._call(path, request)
            except ControlError as error:
                if _is_gone(path):
                    continue
                self.calls["error"] += 1
                failed.append(str(error))
                continue
            if answer.get("ok"):
                self.calls[str(answer.get("result", "applied"))] += 1
                done.append(path)
                continue
            problem = answer.get("error") or {}
            code = str(problem.get("code", "unknown"))
            self.calls[code] += 1
            if code == "unknown_device":
                continue
            if code == "stale_generation":
                # A newer decision has reached this process already; the newest state is what it must show.
                done.append(path)
                continue
            refused.append(f"pid {path.stem}: {problem.get('message', code)}")
        if failed:
            return Result(nic.op_id, "failed", processes=len(done), message="; ".join(failed)[:500])
        if refused:
            return Result(nic.op_id, "refused", processes=len(done), message="; ".join(refused)[:500])
        missing = self._wait_until_shown(done, nic)
        if missing:
            message = f"not shown within {self._verify_timeout_s:g} s by {', '.join(p.stem for p in missing)}"
            return Result(nic.op_id, "failed", processes=len(done), message=message)
        return Result(nic.op_id, "applied", verified=True, processes=len(done))

    def check(self, nic: DesiredNic) -> Result:
        """The dry run: what `apply` would reach, with nothing changed."""
        survey = self.survey()
        if nic.desired == "avoid":
            others = [d for d, usable in survey.devices.items() if d != nic.device and usable]
            if survey.processes and not others:
                return Result(
                    nic.op_id, "refused", processes=survey.processes, message="no other NIC is usable"
                )
        return Result(nic.op_id, "applied", processes=survey.processes, message="dry run")

    def _wait_until_shown(self, paths: list[Path], nic: DesiredNic) -> list[Path]:
        deadline = time.monotonic() + self._verify_timeout_s
        missing = list(paths)
        while True:
            missing = [path for path in missing if not self._shows(path, nic)]
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(_POLL_S)

    def _shows(self, path: Path, nic: DesiredNic) -> bool:
        try:
            answer = self._call(path, {"op": "status"})
        except ControlError:
            return _is_gone(path)
        wanted = nic.desired == "avoid"
        return all(
            bool(device.get("avoided")) == wanted
            for device in answer.get("devices", [])
            if device.get("device") == nic.device
        )

    def _call(self, path: Path, message: dict[str, Any]) -> dict[str, Any]:
        with ControlClient(path, self._call_timeout_s) as client:
            # Nobody but the owner of the socket, or root, can be meant by the file; anybody else has squatted it.
            owner = os.lstat(path).st_uid
            if client.peer_uid not in (owner, 0):
                raise ControlError(f"{path}: served by uid {client.peer_uid}, owned by uid {owner}")
            return client.call(message)


def _is_gone(path: Path) -> bool:
    """True when nobody can be behind the socket any more."""
    try:
        with ControlClient(path, 0.2):
            return False
    except ControlError:
        return not path.stem.isdigit() or not Path(f"/proc/{path.stem}").exists()
