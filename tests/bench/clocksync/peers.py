"""The contestants that others wrote: chronyd and ptp4l, on the same wire, never steering the kernel's clock.

chronyd runs with `-x` and on its host's virtual clock (tests/native/clocks/virtual_clock_preload.c), as ours do: on the
kernel's, which all namespaces share, it would follow a clock that never drifts against its own. What it believes is
asked at its command socket. Of the two transmit stamps that the lab's kernel gives a packet it sees the first
(first_tx_stamp.c): the second is taken behind the queue, and chronyd, which takes the last, would not be under load at
all. ptp4l runs with the ntpshm servo, which publishes its offset and touches no clock; it stays on the kernel's clock,
where the true offset is 0 and what it believes is its error: a help, if anything.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fixtures.debian_tool import debian_tool

from fabricpulse.clocksync.outputs.chrony_refclock import SHM_KEY, ShmTime
from fabricpulse.lab import Host, Lab

ROOT = Path(__file__).parents[3]
PEERS = [("chrony", "chronyd"), ("linuxptp", "ptp4l")]  # Debian's package, program
_SO_TIMESTAMPING = 37
_TX_SOFTWARE, _SOFTWARE, _OPT_TSONLY = 1 << 1, 1 << 4, 1 << 11
_NTP_EPOCH = 2_208_988_800


def missing_tools() -> list[str]:
    """Programs that are needed and cannot be had."""
    return [program for package, program in PEERS if debian_tool(package, program) is None]


def _program(name: str) -> str:
    package = next(package for package, program in PEERS if program == name)
    found = debian_tool(package, name)
    if found is None:
        raise FileNotFoundError(f"{name} is not on PATH, and Debian's package {package} cannot be fetched")
    return found


def build_preload(directory: Path, name: str = "virtual_clock_preload") -> Path:
    """Compiles what gives a program the virtual clock of its host, to read, or as virtual_timex_preload to steer; as
    first_tx_stamp what hides from chronyd the lab's second transmit stamp.

    Raises subprocess.CalledProcessError.
    """
    target = directory / f"{name}.so"
    source = ROOT / "tests" / "native" / "clocks" / f"{name}.c"
    include = f"-I{ROOT / 'core' / 'include'}"
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", include, str(source), "-o", str(target)], check=True
    )
    return target


def start_chronyd(
    host: Host, directory: Path, name: str, port: int, lines: list[str], preload: Sequence[Path] = ()
) -> Path:
    """Starts `chronyd -x` on `host`, answering NTP at `port`; returns its command socket.

    preload : of build_preload, for the host's virtual clock instead of the kernel's, and for one stamp a packet.
    """
    place = directory / f"chrony-{name}"
    place.mkdir(mode=0o700)
    config = place / "chrony.conf"
    common = [
        f"port {port}", "cmdport 0", f"bindcmdaddress {place}/command", f"pidfile {place}/pid", "user root",
        "allow all", "hwtimestamp *", f"driftfile {place}/drift",
    ]  # fmt: skip
    config.write_text("\n".join([*common, *lines]) + "\n")
    host.popen(
        [_program("chronyd"), "-x", "-d", "-f", str(config)],
        name=f"chronyd-{name}",
        env={"LD_PRELOAD": ":".join(map(str, preload))} if preload else None,
    )
    return place / "command"


class ChronyTracking:
    """Asks chronyd at its command socket what `chronyc tracking` asks: how far its time is from the clock it runs on.

    Not its NTP port: over loopback the receive stamp is some 250 ns later than the transmit stamp, and scatters.
    """

    _REQUEST, _REPLY, _CORRECTION = 33, 5, 68

    def __init__(self, command: Path) -> None:
        self._command = str(command)
        self._own = command.with_name(f"bench-{os.getpid()}")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._own))
        self._socket.settimeout(0.05)
        self._sequence = 0

    def offset_ns(self) -> float | None:
        """chronyd's time minus the clock it runs on, ns; None without an answer, or while it follows nothing."""
        self._sequence += 1
        request = struct.pack("!BBBBHHI8x", 6, 1, 0, 0, self._REQUEST, 0, self._sequence)
        try:
            self._socket.sendto(request.ljust(104, b"\0"), self._command)
            while True:
                reply = self._socket.recv(1024)
                _, command, kind, status, sequence = struct.unpack_from("!4sHHH6xI", reply)
                if sequence == self._sequence:
                    break
        except OSError:
            return None
        leap = struct.unpack_from("!H", reply, 54)[0]
        if (command, kind, status) != (self._REQUEST, self._REPLY, 0) or leap == 3:
            return None
        # chrony's own float: 7 bits of exponent, 25 of coefficient, both signed.
        (raw,) = struct.unpack_from("!i", reply, self._CORRECTION)
        coefficient = (raw & 0x1FFFFFF) - ((raw & 0x1000000) << 1)
        return float(coefficient * 2.0 ** ((raw >> 25) - 25) * 1e9)

    def close(self) -> None:
        self._socket.close()
        self._own.unlink(missing_ok=True)


class NtpQuery:
    """Asks an NTP server in the namespace of `host` what time it is."""

    def __init__(self, lab: Lab, host: str, port: int) -> None:
        self._socket = lab.socket(host, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _TX_SOFTWARE | _SOFTWARE | _OPT_TSONLY)
        self._socket.settimeout(0.05)
        self._socket.connect(("127.0.0.1", port))

    def offset_ns(self) -> float | None:
        """What the server's clock shows minus the kernel's clock; None without an answer. Best of three: the first
        finds cold caches."""
        best: tuple[int, float] | None = None
        for _ in range(3):
            asked = time.time_ns()
            try:
                self._socket.send(b"\x23" + bytes(39) + struct.pack("!Q", asked))
                reply = self._socket.recv(128)
                _, ancillary, _, _ = self._socket.recvmsg(64, 256, socket.MSG_ERRQUEUE)
            except OSError:
                continue
            stamps = [
                data
                for level, kind, data in ancillary
                if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPING)
            ]
            if not stamps or len(reply) < 48 or reply[1] == 0 or reply[0] >> 6 == 3:
                continue
            seconds, ns = struct.unpack("qq", stamps[0][:16])
            whole, fraction = struct.unpack("!II", reply[32:40])
            offset = (whole - _NTP_EPOCH - seconds) * 1e9 + fraction * 1e9 / 2**32 - ns
            took = time.time_ns() - asked
            if best is None or took < best[0]:
                best = (took, offset)
        return best[1] if best is not None else None

    def close(self) -> None:
        self._socket.close()


class Ptp4l:
    """ptp4l on both hosts, software stamps, unicast, 16 Sync a second; its offsets by NTP SHM unit `unit`.

    A lab has System V memory of its own, so a small process inside it reads the segment: this module, run as a program.
    """

    def __init__(
        self, server: Host, client: Host, server_address: str, directory: Path, unit: int = 77
    ) -> None:
        common = [
            *(
                "time_stamping software",
                "network_transport UDPv4",
                "delay_mechanism E2E",
                "logSyncInterval -4",
            ),
            *("logMinDelayReqInterval -4", "logAnnounceInterval -2", "tx_timestamp_timeout 20"),
            *("inhibit_multicast_service 1", "hybrid_e2e 1", "unicast_listen 1"),
        ]
        server_lines = ["[global]", *common, "priority1 1", f"uds_address {directory}/ptp-server", "[rail0]"]
        client_lines = [
            *("[global]", *common, "slaveOnly 1", "clock_servo ntpshm", f"ntpshm_segment {unit}"),
            *(
                f"uds_address {directory}/ptp-client",
                "[unicast_master_table]",
                "table_id 1",
                "logQueryInterval 1",
            ),
            *(f"UDPv4 {server_address}", "[rail0]", "unicast_master_table 1"),
        ]
        # See one_tx_stamp.c: without it ptp4l takes the lab's second transmit stamp for a fault.
        shim = directory / "one_tx_stamp.so"
        source = Path(__file__).parents[2] / "native" / "clocks" / "one_tx_stamp.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(shim), "-ldl"], check=True)
        for host, lines in ((server, server_lines), (client, client_lines)):
            config = directory / f"ptp4l-{host.name}.conf"
            config.write_text("\n".join(lines) + "\n")
            command = [_program("ptp4l"), "-f", str(config), "-m", "-i", "rail0"]
            host.popen(command, env={"LD_PRELOAD": str(shim)}, name="ptp4l")
        path = directory / "ptp4l-offsets"
        with path.open("wb") as out:
            command = [sys.executable, "-m", "tests.bench.clocksync.peers", str(unit)]
            client.popen(command, cwd=Path(__file__).parents[3], stdout=out, name="ptp4l-offsets")
        self._lines = path.open()

    def new_offsets_ns(self) -> list[int]:
        """The offsets since the last call: what ptp4l takes for the difference of the two clocks."""
        return [int(line) for line in self._lines.readlines() if line.endswith("\n")]

    def close(self) -> None:
        self._lines.close()


def print_offsets(unit: int) -> None:
    """Prints every offset that appears in NTP SHM unit `unit`, ns, one a line."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    identity = libc.shmget(SHM_KEY + unit, ctypes.sizeof(ShmTime), 0o1600)
    address = libc.shmat(identity, None, 0) if identity >= 0 else None
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"NTP SHM unit {unit}")
    t = ShmTime.from_address(address)
    count = t.count
    while True:
        if t.count != count and t.valid:
            count = t.count
            print((t.clock_sec - t.receive_sec) * 10**9 + int(t.clock_ns) - int(t.receive_ns), flush=True)
            t.valid = 0  # as a reader does
        time.sleep(0.01)


if __name__ == "__main__":
    print_offsets(int(sys.argv[1]))
