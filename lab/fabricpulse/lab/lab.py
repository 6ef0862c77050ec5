"""A GPU fleet on one machine. `with Lab(hosts=4, rails=2) as lab:` and everything in it is real but the cables.

All of it ends with `close()`, and also when this process ends in any other way (see keeper.py).
"""

import http.client
import itertools
import json
import os
import shutil
import signal
import socket as sockets
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlsplit

from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import Host as MemberHost
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.fleet.membership import Nic as MemberNic
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.shm.virtual_clock import ENV as CLOCK_ENV
from fabricpulse.lab.channel import Channel, LabClosedError, LabUnavailableError
from fabricpulse.lab.clocks import HostClock, WanderDriver
from fabricpulse.lab.fabric import FRONT_END, MGMT, Fabric
from fabricpulse.lab.faults import Fault, Port, tbf
from fabricpulse.lab.forward import Forwarder
from fabricpulse.lab.load import Load
from fabricpulse.lab.node import Host, Link, Nic, Node, Spine
from fabricpulse.lab.process import LabProcess, pid_of

DIRECTORY_PREFIX = "fabricpulse-lab-"

# Of the parent's environment, what would be wrong inside: proxies that cannot be reached, a service manager that is
# not theirs, a clock and a run directory of another host.
_NOT_INHERITED = {"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", RUN_DIR_ENV, CLOCK_ENV}

# AF_UNIX paths end at 107 bytes, and `<lab>/h199/run/plugin/4194304-ffffffff.sock` must fit.
_DIRECTORY_MAX = 60


class Lab:
    """A running lab.

    fabric : its size. directory : where run directories, logs and clocks lie; removed by `close()` unless `keep`.
    nic_mbit : every NIC's speed in Mbit/s (shaped at the switch towards the host and at the leaf's uplinks), None =
    as fast as this machine can.
    """

    def __init__(
        self,
        hosts: int = 4,
        rails: int = 2,
        spines: int = 2,
        pods: int = 1,
        *,
        mtu: int = 9000,
        ipv6: bool = True,
        nic_mbit: float | None = None,
        directory: Path | None = None,
        keep: bool = False,
    ) -> None:
        self.fabric = Fabric(hosts=hosts, rails=rails, spines=spines, pods=pods, mtu=mtu, ipv6=ipv6)
        self.nic_mbit = nic_mbit
        self.keep = keep
        self.warnings: list[str] = []
        self._given_directory = directory
        self._directory: Path | None = None
        self._channel: Channel | None = None
        self._forwarder: Forwarder | None = None
        self._driver = WanderDriver()
        self._faults: list[Fault] = []
        self._shapes: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._numbers = itertools.count(1)
        self._ended = False
        self._process_lock = threading.Lock()
        self._processes: dict[int, LabProcess] = {}
        self._early_exits: dict[int, tuple[int, int]] = {}
        self._ports: dict[tuple[str, str], Port] = {}
        for link in self.fabric.links:
            for end, peer in ((link.a, link.b), (link.b, link.a)):
                self._ports[end] = Port(self, *end, peer)
        self._nodes: dict[str, Node] = {}

    # Life

    def start(self) -> Self:
        """Builds the lab. Raises LabUnavailableError, a UserError, saying what this machine lacks."""
        if self._channel is not None:
            raise UserError("this lab has been started already")
        _require_tools()
        self._directory = directory = self._make_directory()
        try:
            for name in self.fabric.nodes:
                for part in ("run", "log"):
                    (directory / name / part).mkdir(parents=True)
            (directory / "hosts").write_text(self.fabric.hosts_file)
            for plan in self.fabric.host_plans:
                clock = HostClock(directory / plan.name / "virtual-clock", self._driver)
                self._nodes[plan.name] = Host(self, plan, directory / plan.name, clock)
            for name in self.fabric.nodes:
                if name not in self._nodes:
                    kind = Spine if name in self.fabric.spine_names else Node
                    self._nodes[name] = kind(self, name, directory / name)
            self._channel = Channel(directory, self.keep, self._on_exit, self._on_end)
            size = {
                name: getattr(self.fabric, name)
                for name in ("hosts", "rails", "spines", "pods", "mtu", "ipv6")
            }
            answer, (pidfd,) = self._channel.request("build", fabric=size)
            self.warnings = answer["warnings"]
            self._write_description(answer, pid_of(pidfd))
            os.close(pidfd)
            if self.nic_mbit is not None:
                for host in self.hosts:
                    for nic in host.nics:
                        self._shape(nic.switch_port, self.nic_mbit, 20.0)
                        self._shape(nic.host_port, self.nic_mbit, 20.0)
                self._faults.clear()  # a NIC's speed is no fault: heal() leaves it
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends every process and namespace of the lab; returns when they are gone. Twice does no harm."""
        self._driver.close()
        if self._channel is not None:
            self._channel.close()
        if self._forwarder is not None:
            self._forwarder.close()
            self._forwarder = None
        if self._directory is not None and not self.keep:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self._channel is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where the lab keeps its files: `<directory>/h0/{run,log,virtual-clock}`."""
        if self._directory is None:
            raise LabClosedError("the lab has not been started")
        return self._directory

    @property
    def keeper_pid(self) -> int:
        """PID of the lab's keeper; the lab ends with it."""
        if self._channel is None:
            raise LabClosedError("the lab has not been started")
        return self._channel.keeper_pid

    # What is in it

    @property
    def hosts(self) -> tuple[Host, ...]:
        """h0, h1, …"""
        return tuple(self.host(name) for name in self.fabric.host_names)

    def node(self, name: str) -> Node:
        """Any node: a host, mgmt, a leaf, a spine, fe. Raises UserError."""
        try:
            return self._nodes[name]
        except KeyError:
            raise UserError(f"the lab has no node {name!r}; it has {', '.join(self.fabric.nodes)}") from None

    def host(self, name: str | int) -> Host:
        """A host by name or number. Raises UserError."""
        node = self.node(f"h{name}" if isinstance(name, int) else name)
        if not isinstance(node, Host):
            raise UserError(
                f"{name} is no host of the lab; the hosts are {', '.join(self.fabric.host_names)}"
            )
        return node

    @property
    def mgmt(self) -> Node:
        """Where Prometheus, Alertmanager, the coordinator and the receiver run."""
        return self.node(MGMT)

    @property
    def spines(self) -> tuple[Spine, ...]:
        """spine0, spine1, …: the equal paths."""
        return tuple(self.spine(number) for number in range(self.fabric.spines))

    def spine(self, number: int) -> Spine:
        """A spine by number. Raises UserError."""
        node = self.node(f"spine{number}")
        if not isinstance(node, Spine):
            raise TypeError(f"{node} is no spine")
        return node

    def link(self, leaf: str, spine: str) -> Link:
        """The cable between a leaf and a spine. Raises UserError."""
        return Link(self, self.port(leaf, spine), self.port(spine, leaf))

    def port(self, node: str, device: str) -> Port:
        """One end of any cable: port("leaf0", "h2"), port("spine1", "leaf0"), port("h0", "fe0"). Raises UserError."""
        try:
            return self._ports[node, device]
        except KeyError:
            self.node(node)
            devices = ", ".join(name for where, name in self._ports if where == node)
            raise UserError(f"{node} has no port {device!r}; it has {devices}") from None

    def nic(self, name: str) -> tuple[Host, Nic]:
        """Host and NIC of a name such as "h0-rail1". Raises UserError."""
        host, _, device = name.partition("-")
        found = self.host(host)
        return found, found.nic(device)

    def address(self, host: str, device: str) -> str:
        """The IPv4 address of a host's NIC, `fe0` included."""
        found = self.host(host)
        return found.front_end if device == "fe0" else found.nic(device).address

    def membership(self) -> Membership:
        """The fleet as the mesh and clocksync see it."""
        return Membership(
            hosts=tuple(
                MemberHost(
                    name=plan.name,
                    nics=tuple(
                        MemberNic(device=nic.device, address=nic.address, network=nic.device)
                        for nic in plan.nics
                    ),
                )
                for plan in self.fabric.host_plans
            )
        )

    def write_membership(self, path: Path | None = None) -> Path:
        """Writes the membership file (default `<directory>/membership.yaml`) whole or not at all; returns its path."""
        path = path or self.directory / "membership.yaml"
        lines = ["hosts:"]
        for host in self.membership().hosts:
            lines += [f"  - name: {host.name}", "    nics:"]
            lines += [
                f"      - {{device: {nic.device}, address: {nic.address}, network: {nic.network}}}"
                for nic in host.nics
            ]
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(path)
        return path

    # Doing things in it

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
        place = self.node(node)
        command = [os.fspath(part) for part in argv]
        name = name or Path(command[0]).name
        log = place.directory / "log" / f"{name}.log" if stdout is None else None
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
            if isinstance(place, Host):
                place.clock.mark_in_use()
            answer, (pidfd,) = self._request_with(
                standard,
                "spawn",
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
        env |= self._own_environment(node)
        env["PYTHONUNBUFFERED"] = "1"
        env.update(extra or {})
        return env

    def socket(
        self,
        node: str,
        kind: sockets.SocketKind = sockets.SOCK_STREAM,
        family: sockets.AddressFamily = sockets.AF_INET,
        protocol: int = 0,
    ) -> sockets.socket:
        """A new socket of this process that lives in the network of `node`: bind, connect, send as if there."""
        _, (descriptor,) = self._request(
            "socket", node=node, family=int(family), type=int(kind) & 0xF, protocol=protocol
        )
        return sockets.socket(fileno=descriptor)

    def connect(self, node: str, address: str, port: int, timeout: float = 5.0) -> sockets.socket:
        """A TCP connection from `node`. address : IP, or a name of the lab (`h1`, `h1-rail0`, `localhost`)."""
        resolved = self.resolve(address)
        sock = self.socket(
            node, sockets.SOCK_STREAM, sockets.AF_INET6 if ":" in resolved else sockets.AF_INET
        )
        sock.settimeout(timeout)
        try:
            sock.connect((resolved, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def resolve(self, name: str) -> str:
        """An IP address for a name of the lab; an address is returned as it is."""
        for line in self.fabric.hosts_file.splitlines():
            address, *names = line.split()
            if name in names:
                return address
        return name

    def http(
        self,
        node: str,
        url: str,
        *,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 5.0,
    ) -> tuple[int, str]:
        """One HTTP request as if from `node`; returns (status, body). Names of the lab resolve. Raises OSError."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise UserError(f"{url!r} is no http:// URL")
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
        connection.sock = self.connect(node, parts.hostname, parts.port or 80, timeout)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, target, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def http_get(self, node: str, url: str, timeout: float = 5.0) -> str:
        """The body of `url` as seen from `node`. Raises UserError if its status is not 200, OSError without answer."""
        status, body = self.http(node, url, timeout=timeout)
        if status != 200:
            raise UserError(f"GET {url} from {node} answered {status}: {body[:500].strip()}")
        return body

    def forward(self, node: str, port: int, *, host: str = "127.0.0.1", outside_port: int = 0) -> int:
        """Shows 127.0.0.1:`port` of `node` outside the lab; returns the outside port on 127.0.0.1.

        Raises UserError when `outside_port` is taken.
        """
        self.node(node)
        if self._forwarder is None:
            self._forwarder = Forwarder()
        try:
            return self._forwarder.listen(lambda: self.socket(node), (host, port), "127.0.0.1", outside_port)
        except OSError as error:
            raise UserError(
                f"cannot show port {port} of {node} on 127.0.0.1:{outside_port}: {error.strerror}; choose another port"
            ) from error

    # Truth and faults

    def true_offset_ns(self, a: str, b: str, kernel_ns: int) -> int:
        """Clock of `a` minus clock of `b` (positive = a is ahead) when the kernel's CLOCK_REALTIME was `kernel_ns`."""
        return self.host(a).clock.truth(kernel_ns) - self.host(b).clock.truth(kernel_ns)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Every fault in force, oldest first."""
        return tuple(self._faults)

    def load(
        self, source: str, destination: str, mbit: float, *, path: str | None = None, flows: int = 1
    ) -> Load:
        """Starts background UDP traffic from "h0-rail0" to "h1-rail1"; it ends as a fault does.

        path : the spine that all flows cross ("spine0"). Raises UserError when none can.
        """
        return Load(self, source, destination, mbit, path, flows)

    def heal(self) -> None:
        """Undoes every fault, newest first."""
        for fault in reversed(self.faults):
            fault.undo()

    def path(
        self, source: str, destination: str, source_port: int, destination_port: int, protocol: str = "udp"
    ) -> str:
        """The spine that this five-tuple takes now, as the first leaf's kernel decides; "" when none is crossed.

        source, destination : "h0-rail0", … Raises UserError when there is no route.
        """
        _, nic = self.nic(source)
        target = self.resolve(destination)
        out = self.run(
            nic.leaf,
            [
                *("ip", "-json", "route", "get", target, "from", nic.address, "iif", "br0"),
                *("ipproto", protocol, "sport", str(source_port), "dport", str(destination_port)),
            ],
        ).stdout
        device_out = str(json.loads(out)[0]["dev"])
        return device_out if device_out in self.fabric.spine_names else ""

    # For the parts of this package

    def _request(self, op: str, **fields: Any) -> tuple[dict[str, Any], list[int]]:
        return self._request_with((), op, **fields)

    def _request_with(
        self, descriptors: Iterable[int], op: str, **fields: Any
    ) -> tuple[dict[str, Any], list[int]]:
        if self._channel is None:
            raise LabClosedError("the lab has not been started")
        return self._channel.request(op, list(descriptors), **fields)

    def _batch(self, node: str, tool: str, lines: list[str]) -> str:
        answer, _ = self._request("batch", node=node, tool=tool, lines=lines)
        return str(answer["output"])

    def _number(self) -> int:
        return next(self._numbers)

    def _mtu(self, port: Port) -> int:
        return 1500 if FRONT_END in (port.node, port.peer[0]) else self.fabric.mtu

    def _is_bridge_port(self, port: Port) -> bool:
        return port.node == FRONT_END or (
            port.node in self.fabric.leaf_names and port.peer[0] in self.fabric.host_names
        )

    def _shape(self, port: Port, mbit: float, queue_ms: float) -> Fault:
        """Limits a port; several limits of one port stack, and the newest holds."""
        line = tbf(port.device, mbit, queue_ms, self._mtu(port))
        number = self._number()
        stack = self._shapes.setdefault((port.node, port.device), [])
        self._batch(port.node, "tc", [line])
        stack.append((number, line))

        def undo() -> None:
            was_newest = stack[-1][0] == number
            stack[:] = [entry for entry in stack if entry[0] != number]
            if was_newest:
                self._batch(port.node, "tc", [stack[-1][1] if stack else f"qdisc del dev {port.device} root"])

        return Fault(self, f"limit {mbit:g} Mbit/s {port}", undo)

    def _on_exit(self, pid: int, code: int, at_ns: int) -> None:
        with self._process_lock:
            process = self._processes.pop(pid, None)
            if process is None:
                self._early_exits[pid] = (code, at_ns)
        if process is not None:
            process._set_ended(code, at_ns)

    def _on_end(self) -> None:
        """The keeper is gone, and the kernel has killed with it whatever still ran."""
        with self._process_lock:
            self._ended = True
            killed = list(self._processes.values())
            self._processes.clear()
        for process in killed:
            process._set_ended(-signal.SIGKILL, time.time_ns())

    def _make_directory(self) -> Path:
        if self._given_directory is not None:
            directory = self._given_directory.resolve()
            if (directory / "lab.json").exists():
                raise UserError(
                    f"{directory} already holds a lab or what is left of one: choose another directory"
                )
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"cannot make the lab's directory {directory}: {error.strerror}") from error
        else:
            base = tempfile.gettempdir()
            if len(base) + len(DIRECTORY_PREFIX) + 8 > _DIRECTORY_MAX:
                base = "/tmp"  # noqa: S108 - mkdtemp is safe there
            directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=base))
            directory.chmod(0o755)
        if len(str(directory)) > _DIRECTORY_MAX:
            raise UserError(
                f"the lab's directory {directory} is too long for the Unix sockets in it: "
                f"choose a path of at most {_DIRECTORY_MAX} characters"
            )
        return directory

    def _write_description(self, built: Mapping[str, Any], inner_pid: int) -> None:
        """`lab.json`: how another process finds its way in (`fabricpulse lab list`, `exec`, `shell`)."""
        document = {
            "keeper_pid": self.keeper_pid,
            "inner_pid": inner_pid,
            "parent_pid": os.getpid(),
            "nodes": list(self.fabric.nodes),
            "entries": built["entries"],
            "user_namespace": built["user_namespace"],
            "environment": {node: self._own_environment(node) for node in self.fabric.nodes},
        }
        (self.directory / "lab.json").write_text(json.dumps(document))

    def _own_environment(self, node: str) -> dict[str, str]:
        place = self.node(node)
        env = {RUN_DIR_ENV: str(place.run_dir)}
        if isinstance(place, Host):
            env[CLOCK_ENV] = str(place.clock.path)
        return env


def _require_tools() -> None:
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [tool for tool in ("ip", "tc", "nft") if shutil.which(tool, path=search) is None]
    if missing:
        raise LabUnavailableError(
            f"the lab needs {' and '.join(missing)}, not found on PATH: install iproute2 and nftables "
            "(Debian: apt-get install iproute2 nftables)"
        )
    if sys.platform != "linux":
        raise LabUnavailableError("the lab is made of Linux network namespaces and cannot run on this system")
