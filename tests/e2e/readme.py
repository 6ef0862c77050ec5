"""The README's blocks, run where they say, on machines made of namespaces: `scripts/readme_test.sh`.

A block is what stands in ``` below a comment `<!-- on: PLACE -->`. PLACE is `build` (run by the script before),
`every`, `hosts`, `monitor` or the name of one host. What a real machine has and a namespace has not is stood in for:
scp, and systemctl, which starts what the unit that the README's blocks have put in place says, as its user.
"""

import json
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.fixtures.waiting import Patience

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab
from fabricpulse.lab.tools import Tools, command_line, find_tools

ROOT = Path(__file__).parents[2]
NAMES = {"h0": "gpu-001", "h1": "gpu-002", "h2": "gpu-003", "mgmt": "monitor"}
NODES = {name: node for node, name in NAMES.items()}
# Each machine has its own; of /etc a copy of this machine's.
OWN_FOLDERS = ("/etc", "/opt", "/usr/local/bin", "/var/lib", "/var/log", "/srv")
LIMIT_S = 600.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FLAPPING = {"alertname": "FabricNicFlapping", "instance": "gpu-002", "device": "eth1", "cluster": "gpu-a"}

_BLOCK = re.compile(r"<!-- on: ([\w-]+) -->\n```\n(.*?)^```$", re.S | re.M)

SYSTEMCTL = r"""#!/bin/bash
# Stands in for systemd: starts the units that it is asked to, and starts again what ends, as they say.
set -eu
start() {
  local unit=/etc/systemd/system/$1.service
  [ -e "/mnt/$1" ] && { setsid /mnt/"$1" >>/var/log/"$1".log 2>&1 & return; }
  [ -e "$unit" ] || { echo "Unit $1.service not found." >&2; exit 5; }
  value() { sed -n "s/^$1=//p" "$unit" | tail -1; }
  local user state caps
  user=$(value User); state=$(value StateDirectory); caps=$(value AmbientCapabilities)
  if [ -n "$state" ]; then mkdir -p "/var/lib/$state"; chown "$user" "/var/lib/$state"; chmod 0700 "/var/lib/$state"; fi
  local as=(setpriv "--reuid=$user" --clear-groups)
  if id -g "$user" >/dev/null 2>&1; then as+=("--regid=$(id -g "$user")"); fi
  if [ -n "$caps" ]; then
    local names; names=$(echo "$caps" | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
    as+=("--inh-caps=$names" "--ambient-caps=$names")
  fi
  local OPTIONS=
  if [ -e "/etc/default/$1" ]; then . "/etc/default/$1"; fi
  local command; command=$(value ExecStart); command=${command//\$OPTIONS/$OPTIONS}
  (
    umask "$(value UMask)"
    cd /
    setsid env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
      bash -c 'log=$1; shift; while :; do "$@" >>"$log" 2>&1; [ $? = 2 ] && exit; sleep 1; done' \
      supervise "/var/log/$1.log" "${as[@]}" $command &
  )
}
case $1 in
  daemon-reload) ;;
  enable) shift 2; for unit in "$@"; do start "$unit"; done ;;
  restart) shift; for unit in "$@"; do start "$unit"; done ;;
  *) echo "systemctl: $1 is not stood in for" >&2; exit 1 ;;
esac
"""

SCP = """#!/bin/sh
# Copies HOST:PATH of another machine of this lab.
exec cp "{machines}/${{1%%:*}}${{1#*:}}" "$2"
"""


@dataclass(frozen=True)
class Block:
    """A block of the README: where it runs, what."""

    place: str
    script: str

    @property
    def machines(self) -> list[str]:
        """Names of the machines that it runs on."""
        hosts = [name for name in NODES if name != "monitor"]
        return {"build": [], "every": ["monitor", *hosts], "hosts": hosts}.get(self.place, [self.place])


def blocks(text: str) -> list[Block]:
    """All marked blocks of `text`, in order."""
    return [Block(*match) for match in _BLOCK.findall(text)]


class Machines:
    """Three hosts with two NICs each and a monitor, with the names and addresses of the README."""

    def __init__(self, lab: Lab, work: Path, tools: Tools) -> None:
        """work : holds `dist` and `wheelhouse`."""
        self._lab = lab
        self._work = work
        self._folders = work / "machines"
        for name in NODES:
            self._make(name, tools)

    def run(self, name: str, script: str, timeout: float = 300.0) -> str:
        """Runs a shell script as root of a machine; its output. Raises UserError when it fails."""
        env = {
            # The python3 of a machine is the one that the wheel was built for.
            "PATH": f"/mnt:{Path(sys.base_prefix) / 'bin'}:{SYSTEM_PATH}",
            "HOME": "/srv",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self._work / "wheelhouse"),
            "FABRICPULSE_RUN_DIR": "/run/fabricpulse",
        }
        command = [
            "env",
            "-u",
            "FABRICPULSE_VIRTUAL_CLOCK",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            f"cd /srv\n{script}",
        ]
        done = self._lab.run(NODES[name], command, env=env, timeout=timeout, check=False, cwd=Path("/"))
        if done.returncode != 0:
            raise UserError(
                f"on {name} this ended with {done.returncode}:\n{script}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _logs(self, name: str) -> list[Path]:
        return sorted((self._folders / name / "var/log").glob("*.log"))

    def _make(self, name: str, tools: Tools) -> None:
        node, folder = NODES[name], self._folders / name
        for own in OWN_FOLDERS:
            (folder / own.lstrip("/")).mkdir(parents=True)
        shutil.copytree("/etc", folder / "etc", symlinks=True, dirs_exist_ok=True)
        hosts = "\n".join(f"{self._lab.resolve(node)} {name}" for node, name in NAMES.items())
        (folder / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}\n")
        for path in ("etc/prometheus", "etc/alertmanager", "etc/sysusers.d", "etc/tmpfiles.d"):
            (folder / path).mkdir(exist_ok=True)
        for wheel in (self._work / "dist").glob("fabricpulse-*.whl"):
            (folder / "srv" / wheel.name).write_bytes(wheel.read_bytes())
        stand_in = folder / "stand-in"
        stand_in.mkdir()
        self._script(stand_in / "systemctl", SYSTEMCTL)
        self._script(stand_in / "scp", SCP.format(machines=self._folders))
        self._server(
            stand_in / "prometheus", command_line(tools.prometheus), "/etc/prometheus/prometheus.yml"
        )
        self._server(
            stand_in / "alertmanager", command_line(tools.alertmanager), "/etc/alertmanager/alertmanager.yml"
        )
        lines = [f"mount --bind {shlex.quote(str(folder))}{own} {own}" for own in OWN_FOLDERS]
        lines += [f"mount --bind {shlex.quote(str(stand_in))} /mnt", f"hostname {name}"]
        if name != "monitor":
            for number in (0, 1):
                rail, device = f"rail{number}", f"eth{number + 1}"
                lines += [
                    f"ip link set {rail} down",
                    f"ip link set {rail} name {device}",
                    f"ip link set {device} up",
                ]
            # The lab's source routing is bound to its own device names; one subnet a rail needs none.
            lines += [
                f"while ip rule del priority {priority} 2>/dev/null; do :; done" for priority in (1000, 1001)
            ]
        self._lab.run(node, ["sh", "-ec", "\n".join(lines)])

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def _server(self, path: Path, program: list[str | Path], config: str) -> None:
        words = [*program, f"--config.file={config}"]
        words += [f"--storage.{'tsdb.' if path.name == 'prometheus' else ''}path=/var/lib/{path.name}"]
        if path.name == "alertmanager":
            words.append("--cluster.listen-address=")
        self._script(path, "#!/bin/sh\nexec " + " ".join(shlex.quote(str(word)) for word in words) + "\n")


class Clock:
    """Says what happened when, in seconds since the first block."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> float:
        """Prints a line; returns the seconds."""
        seconds = time.monotonic() - self._start
        sys.stdout.write(f"readme-test: {seconds:6.1f} s  {text}\n")
        sys.stdout.flush()
        return seconds


def alerts(lab: Lab) -> list[dict[str, str]]:
    """Labels of the alerts that Alertmanager has now; none while it does not answer."""
    try:
        answer: list[dict[str, Any]] = json.loads(lab.http_get("mgmt", "http://127.0.0.1:9093/api/v2/alerts"))
    except (OSError, UserError):
        return []
    return [alert["labels"] for alert in answer]


def decided(journal: Callable[[], str]) -> bool:
    """Whether the journal has a decision about the NIC that flaps."""
    text = journal()
    return "gpu-002" in text and "dry_run" in text


def wait_for(what: str, check: Callable[[], bool], clock: Clock, seconds: float = 120.0) -> float:
    """Waits until `check`; returns when it was. Raises UserError."""
    patience = Patience(seconds)
    while not check():
        if not patience.left():
            raise UserError(f"not seen within {seconds:g} s: {what}")
        time.sleep(0.1)
    return clock.say(what)


def play(lab: Lab, work: Path) -> dict[str, float]:
    """Runs all blocks; returns the seconds to the first metrics, alert, alert of a fault, decision."""
    machines = Machines(lab, work, find_tools())
    clock = Clock()
    times: dict[str, float] = {}
    for block in blocks((ROOT / "README.md").read_text()):
        output = ""
        for name in block.machines:
            output = machines.run(name, block.script)
            clock.say(f"{name}: {block.script.splitlines()[0][:80]}")
        if "localhost:9610/metrics" in block.script:
            if "fabricpulse_nic_connected" not in output:
                raise UserError(f"no metrics: {output!r}")
            times["first_metrics_s"] = clock.say("first metrics")
        elif "systemctl restart alertmanager prometheus" in block.script:
            times["first_alert_s"] = wait_for(
                "first alert in Alertmanager: FabricWatchdog",
                lambda: any(alert["alertname"] == "FabricWatchdog" for alert in alerts(lab)),
                clock,
            )
        elif "ip link set eth1 down" in block.script:
            times["alert_of_a_fault_s"] = wait_for(
                "alert of the fault in Alertmanager: FabricNicFlapping gpu-002 eth1",
                lambda: any(FLAPPING.items() <= alert.items() for alert in alerts(lab)),
                clock,
            )
        elif "remediation journal" in block.script:
            # A decision waits for the settle window: whoever asks sooner asks again.
            journal = partial(machines.run, block.machines[-1], block.script)
            times["decision_s"] = wait_for(
                "decision about gpu-002 in the journal, dry run", partial(decided, journal), clock
            )
    return times


def main() -> int:
    """`python -m tests.e2e.readme WORK`, of scripts/readme_test.sh."""
    work = Path(sys.argv[1])
    try:
        with Lab(hosts=3, rails=2) as lab:
            times = play(lab, work)
    except UserError as error:
        sys.stderr.write(f"readme-test: FAILED: {error}\n")
        return 1
    sys.stdout.write(json.dumps({name: round(value, 1) for name, value in times.items()}) + "\n")
    late = [name for name in ("first_alert_s", "alert_of_a_fault_s") if times[name] > LIMIT_S]
    if late:
        sys.stderr.write(f"readme-test: FAILED: more than {LIMIT_S:g} s: {', '.join(late)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
