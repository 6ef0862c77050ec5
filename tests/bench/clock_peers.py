"""The contestants that others wrote: chronyd and ptp4l, on the same wire, never steering the kernel's clock.

All namespaces share one kernel clock, so the true offset between two hosts is 0 and what a contestant believes is its
error. chronyd runs with `-x`; what it believes is asked at its NTP port over loopback (its receive stamp against the
kernel's transmit stamp). ptp4l runs with the ntpshm servo, which publishes its offset and touches no clock.
"""

import ctypes
import shutil
import socket
import struct
import sys
import time
from pathlib import Path

from fabricpulse.lab import Host, Lab

_SO_TIMESTAMPING = 37
_TX_SOFTWARE, _SOFTWARE, _OPT_TSONLY = 1 << 1, 1 << 4, 1 << 11
_NTP_EPOCH = 2_208_988_800


def missing_tools() -> list[str]:
    """Programs that are needed and not there."""
    return [
        tool
        for tool in ("chronyd", "chronyc", "ptp4l")
        if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin") is None
    ]


def start_chronyd(host: Host, directory: Path, name: str, port: int, lines: list[str]) -> None:
    """Starts `chronyd -x` on `host`, answering NTP at `port`."""
    place = directory / f"chrony-{name}"
    place.mkdir(mode=0o700)
    config = place / "chrony.conf"
    common = [
        f"port {port}", "cmdport 0", "bindcmdaddress /", f"pidfile {place}/pid", "user root", "allow all",
        "hwtimestamp *", f"driftfile {place}/drift",
    ]  # fmt: skip
    config.write_text("\n".join([*common, *lines]) + "\n")
    host.popen(["/usr/sbin/chronyd", "-x", "-d", "-f", str(config)], name=f"chronyd-{name}")


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


class _ShmTime(ctypes.Structure):
    _fields_ = (
        *(
            ("mode", ctypes.c_int),
            ("count", ctypes.c_int),
            ("clock_sec", ctypes.c_long),
            ("clock_us", ctypes.c_int),
        ),
        *(("receive_sec", ctypes.c_long), ("receive_us", ctypes.c_int), ("leap", ctypes.c_int)),
        *(("precision", ctypes.c_int), ("samples", ctypes.c_int), ("valid", ctypes.c_int)),
        *(("clock_ns", ctypes.c_uint), ("receive_ns", ctypes.c_uint), ("reserved", ctypes.c_int * 8)),
    )


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
        for host, lines in ((server, server_lines), (client, client_lines)):
            config = directory / f"ptp4l-{host.name}.conf"
            config.write_text("\n".join(lines) + "\n")
            host.popen(["/usr/sbin/ptp4l", "-f", str(config), "-m", "-i", "rail0"], name="ptp4l")
        path = directory / "ptp4l-offsets"
        with path.open("wb") as out:
            command = [sys.executable, "-m", "tests.bench.clock_peers", str(unit)]
            client.popen(command, cwd=Path(__file__).parents[2], stdout=out, name="ptp4l-offsets")
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
    identity = libc.shmget(0x4E545030 + unit, ctypes.sizeof(_ShmTime), 0o1600)
    address = libc.shmat(identity, None, 0) if identity >= 0 else None
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"NTP SHM unit {unit}")
    t = _ShmTime.from_address(address)
    count = t.count
    while True:
        if t.count != count and t.valid:
            count = t.count
            print((t.clock_sec - t.receive_sec) * 10**9 + int(t.clock_ns) - int(t.receive_ns), flush=True)
            t.valid = 0  # as a reader does
        time.sleep(0.01)


if __name__ == "__main__":
    print_offsets(int(sys.argv[1]))
