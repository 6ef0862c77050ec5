"""The supervisor: process 1 of a lab, which owns its namespaces and starts every process in it.

Theory of operation. The lab's parent (pytest, the demo, the command line) starts `python -m fabricpulse.lab.supervisor`
with one end of a socket pair and a pidfd of itself. The supervisor unshares PID, mount, network, IPC and UTS namespaces
(and, without root, a user namespace) and forks; the child is process 1 of the new PID namespace. When process 1 ends,
the kernel kills every other process of the PID namespace, and with the last process and descriptor the namespaces go,
and with them veths, routes, qdiscs, mounts. So one rule is enough for a clean machine: process 1 ends when

- the parent closes its end of the socket pair, or says `quit`,
- the parent ends in any way, kill -9 included (its pidfd becomes readable),
- the outer half of the supervisor is killed (parent-death signal).

Nothing is written outside: /run is a tmpfs of the lab's own, with the names of its network namespaces in /run/netns.

One request or reply is one message of JSON on a SOCK_SEQPACKET socket; descriptors travel beside it. Requests are
served one after the other, in order; the exit of a process is an event without a request.
"""

import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any, NoReturn

from fabricpulse.core.errors import UserError
from fabricpulse.lab import syscalls, wiring
from fabricpulse.lab.fabric import Fabric
from fabricpulse.lab.isolation import unshare_all
from fabricpulse.lab.namespaces import NAMES, NamespaceBuilder
from fabricpulse.lab.wire import MESSAGE_MAX, receive

CARRIER_TIMEOUT_S = 10.0

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFF_RUNNING = 0x40
_IFREQ = struct.Struct("16sH22x")

Reply = tuple[dict[str, Any], list[int]]


class Supervisor:
    """Process 1 of the lab: builds the namespaces, then serves requests until the parent is gone."""

    def __init__(self, control: socket.socket, parent: int, directory: Path, user_namespace: bool) -> None:
        self._user_namespace = user_namespace
        self._control = control
        self._parent = parent
        self._directory = directory
        self._fabric = Fabric()
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._nodes: dict[str, dict[int, int]] = {}
        self._children: set[int] = set()
        self._operations: dict[str, Callable[[dict[str, Any], list[int]], Reply]] = {
            "build": self._build,
            "spawn": self._spawn,
            "socket": self._socket,
            "batch": self._batch,
            "link": self._link,
        }

    def serve(self) -> None:
        """Returns when the lab is to end."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._parent, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj == self._parent:
                        return
                    if key.fileobj == wake_read:
                        with suppress(BlockingIOError):
                            os.read(wake_read, 4096)
                        self._reap()
                    elif not self._serve_one():
                        return

    def _serve_one(self) -> bool:
        try:
            data, descriptors = receive(self._control)
        except ConnectionResetError:
            return False
        if not data:
            return False
        request = json.loads(data)
        if request["op"] == "quit":
            return False
        try:
            reply, attached = self._operations[request["op"]](request, descriptors)
        except UserError as error:
            reply, attached = {"error": str(error), "kind": "user"}, []
        except OSError as error:
            reply, attached = {"error": str(error), "kind": "os", "errno": error.errno}, []
        except Exception:  # the supervisor must outlive a bug: the parent gets the traceback
            reply, attached = {"error": traceback.format_exc(), "kind": "bug"}, []
        for descriptor in descriptors:
            os.close(descriptor)
        self._send({"id": request["id"], **reply}, attached)
        for descriptor in attached:
            os.close(descriptor)
        return True

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone; the next select says so
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._children:
                self._children.discard(pid)
                event = {"event": "exit", "pid": pid, "code": os.waitstatus_to_exitcode(status)}
                self._send({**event, "at_ns": time.time_ns()}, [])

    # Operations

    def _build(self, request: dict[str, Any], _: list[int]) -> Reply:
        self._fabric = fabric = Fabric(**request["fabric"])
        builder = NamespaceBuilder(self._directory, fabric)
        builder.private_mounts()
        for node in fabric.nodes:
            self._nodes[node] = builder.network_namespace(node)
        self._run_tool("ip", wiring.cables(fabric), None)
        started = [
            (node, self._start_tool("ip", wiring.node_lines(fabric, node), node)) for node in fabric.nodes
        ]
        started += [
            (node, self._start_tool("ip6", wiring.node_rules6(fabric, node), node))
            for node in fabric.host_names
        ]
        for node in fabric.nodes:
            # While `ip` works in the others.
            self._nodes[node] |= builder.node_mounts(node, self._nodes[node][syscalls.CLONE_NEWNET])
        for node, process in started:
            _finish(process, f"ip, in {node}")
        self._await_carriers()
        return {
            "warnings": builder.warnings,
            # Descriptors of this process by which `fabricpulse lab exec` finds its way in, through /proc.
            "entries": {
                node: {NAMES[kind]: descriptor for kind, descriptor in kinds.items()}
                for node, kinds in self._nodes.items()
            },
            "user_namespace": self._user_namespace,
        }, [os.pidfd_open(os.getpid())]

    def _await_carriers(self) -> None:
        """Returns once every cable carries: carriers are reported, and bridges forward, only a little later."""
        waiting = [end for link in self._fabric.links for end in (link.a, link.b)]
        deadline = time.monotonic() + CARRIER_TIMEOUT_S
        probes = {node: self._inner_socket(node) for node in self._nodes}
        try:
            while waiting := [
                (node, device)
                for node, device in waiting
                if not _flags(probes[node].fileno(), device) & _IFF_RUNNING
            ]:
                if time.monotonic() > deadline:
                    node, device = waiting[0]
                    raise UserError(
                        f"{node}:{device} of the lab has no carrier after {CARRIER_TIMEOUT_S:g} s; "
                        "the machine is overloaded, try fewer hosts"
                    )
                time.sleep(0.002)
        finally:
            for probe in probes.values():
                probe.close()

    def _spawn(self, request: dict[str, Any], descriptors: list[int]) -> Reply:
        namespaces = self._namespaces(request["node"])
        report_read, report_write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _child(request, namespaces, descriptors, report_write)
        os.close(report_write)
        with os.fdopen(report_read, "rb") as report:
            failure = report.read()
        if failure:
            os.waitpid(pid, 0)
            number, text = json.loads(failure)
            return {"error": text, "kind": "os", "errno": number}, []
        self._children.add(pid)
        return {"pid": pid}, [os.pidfd_open(pid)]

    def _socket(self, request: dict[str, Any], _: list[int]) -> Reply:
        made = self._inner_socket(request["node"], request["family"], request["type"], request["protocol"])
        return {}, [made.detach()]

    def _inner_socket(
        self, node: str, family: int = socket.AF_INET, kind: int = socket.SOCK_DGRAM, protocol: int = 0
    ) -> socket.socket:
        """A socket that lives in the network of `node`."""
        syscalls.setns(self._namespaces(node)[syscalls.CLONE_NEWNET], syscalls.CLONE_NEWNET)
        try:
            return socket.socket(family, kind, protocol)
        finally:
            syscalls.setns(self._home, syscalls.CLONE_NEWNET)

    def _batch(self, request: dict[str, Any], _: list[int]) -> Reply:
        return {"output": self._run_tool(request["tool"], request["lines"], request["node"])}, []

    def _link(self, request: dict[str, Any], _: list[int]) -> Reply:
        """Sets a device up or down; answers with the kernel time just before and just after."""
        node, device = request["node"], request["device"]
        with self._inner_socket(node) as probe:
            flags = _flags(probe.fileno(), device)
            flags = flags | _IFF_UP if request["up"] else flags & ~_IFF_UP
            before = time.time_ns()
            ioctl(probe.fileno(), _SIOCSIFFLAGS, _IFREQ.pack(device.encode(), flags))
            after = time.time_ns()
        routes: list[str] = []
        if request["up"]:
            if node in self._fabric.host_names and device in self._fabric.rail_names:
                routes = wiring.nic_routes(self._fabric, node, device)
            elif node in (*self._fabric.leaf_names, *self._fabric.spine_names):
                routes = wiring.uplink_routes(self._fabric, node, device)
        if routes:
            self._run_tool("ip", routes, node, force=True)
        return {"before_ns": before, "after_ns": after}, []

    def _namespaces(self, node: str) -> dict[int, int]:
        try:
            return self._nodes[node]
        except KeyError:
            raise UserError(f"the lab has no node {node!r}; it has {', '.join(self._nodes)}") from None

    def _run_tool(self, tool: str, lines: list[str], node: str | None, force: bool = False) -> str:
        return _finish(self._start_tool(tool, lines, node, force), f"{tool}, in {node}", force)

    def _start_tool(
        self, tool: str, lines: list[str], node: str | None, force: bool = False
    ) -> subprocess.Popen[str]:
        """Starts `ip`, `tc` or `nft` on a batch of lines, in the network namespace of `node`."""
        command = {
            "ip": ["ip", *(["-force"] if force else []), "-batch", "-"],
            "ip6": ["ip", "-6", "-batch", "-"],
            "tc": ["tc", "-batch", "-"],
            "nft": ["nft", "-f", "-"],
        }[tool]
        if node is not None:
            syscalls.setns(self._namespaces(node)[syscalls.CLONE_NEWNET], syscalls.CLONE_NEWNET)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        finally:
            syscalls.setns(self._home, syscalls.CLONE_NEWNET)
        if process.stdin is not None:
            with (
                suppress(BrokenPipeError),
                process.stdin,
            ):  # it has failed already, and says why on its output
                process.stdin.write("\n".join(lines) + "\n")
        return process


def _flags(descriptor: int, device: str) -> int:
    answer = ioctl(descriptor, _SIOCGIFFLAGS, _IFREQ.pack(device.encode(), 0))
    return int(_IFREQ.unpack(answer)[1])


def _finish(process: subprocess.Popen[str], what: str, force: bool = False) -> str:
    if process.stdout is None:
        raise TypeError("the tool was started without a pipe")
    with process.stdout:
        output = process.stdout.read()
    if process.wait() != 0 and not force:
        raise UserError(f"the lab could not set up its network ({what}): {' '.join(output.split())}")
    return output


def _child(
    request: dict[str, Any], namespaces: dict[int, int], descriptors: list[int], report: int
) -> NoReturn:
    """The forked half of spawn: enters the node and becomes the program. Never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        for kind in (syscalls.CLONE_NEWNET, syscalls.CLONE_NEWUTS, syscalls.CLONE_NEWNS):
            syscalls.setns(namespaces[kind], kind)
        os.chdir(request["cwd"])
        # The descriptors were received high; 0, 1, 2 are this process's own /dev/null and log.
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target, inheritable=True)
        os.execvpe(  # noqa: S606 - the lab exists to run programs
            request["argv"][0], request["argv"], request["env"]
        )
    except OSError as error:
        os.write(report, json.dumps([error.errno, error.strerror or str(error)]).encode())
    except BaseException as error:
        os.write(report, json.dumps([None, repr(error)]).encode())
    os._exit(127)


def main() -> int:
    """`python -m fabricpulse.lab.supervisor CONTROL_FD PARENT_PIDFD DIRECTORY keep|remove`, started by Lab.start."""
    control_fd, parent_pidfd, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    remove = sys.argv[4] == "remove"
    control = socket.socket(fileno=control_fd)
    for descriptor in (control_fd, parent_pidfd):
        os.set_inheritable(descriptor, False)
    try:
        user_namespace = unshare_all()
    except UserError as error:
        control.send(json.dumps({"event": "fatal", "error": str(error)}).encode())
        # A socket closed with a request unread resets the connection, and the parent would never see why.
        control.shutdown(socket.SHUT_WR)
        control.settimeout(10)
        with suppress(OSError):
            while control.recv(MESSAGE_MAX):
                pass
        return 1
    pid = os.fork()
    if pid != 0:
        control.close()
        os.close(parent_pidfd)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status) & 0x7F
    syscalls.die_with_parent(signal.SIGKILL)
    try:
        Supervisor(control, parent_pidfd, directory, user_namespace).serve()
    finally:
        if remove:
            # The parent does so too, unless it was killed.
            with suppress(ProcessLookupError):
                os.kill(
                    -1, signal.SIGKILL
                )  # everything in this PID namespace but this process: none writes on
            shutil.rmtree(directory, ignore_errors=True)
    # Not sys.exit: nothing is left to flush, and everything in the lab ends with this process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
