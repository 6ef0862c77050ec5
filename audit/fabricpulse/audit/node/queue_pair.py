"""One reliable connected queue pair on the RDMA device of a NIC, from the system's libibverbs. Linux, RoCE v2.

Through ctypes, not pyverbs, for the reasons of hostinfo.libibverbs. The library is opened when a test asks for it; a
host without it, or a NIC without an RDMA device, is a NoRdmaError, which says so.
"""

import ctypes
import ipaddress
import mmap
import os
import secrets
import socket
import struct
from contextlib import ExitStack
from functools import cache
from typing import Any

from fabricpulse.audit.node import verbs_abi as abi
from fabricpulse.audit.node.rdma_wire import QueuePairEnd

# Of the buffer that is written from, and into.
BUFFER_BYTES = 1 << 20
# Most writes under way.
DEPTH = 64
_MOST_GIDS = 1024
_HOP_LIMIT = 64
# 4.096 us · 2^16 = 0.27 s a try, and up to four times that by InfiniBand's specification; four tries without an answer
# are the end.
_TIMEOUT, _RETRIES = 16, 3


class NoRdmaError(Exception):
    """The NIC cannot be tested by RDMA; the text says why."""


@cache
def library() -> Any:
    """Raises NoRdmaError."""
    try:
        found = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        for name, result, arguments in abi.FUNCTIONS:
            entry = getattr(found, name)
            entry.restype, entry.argtypes = result, arguments
    except OSError as error:
        raise NoRdmaError("no RDMA: libibverbs is not installed") from error
    except AttributeError as error:
        raise NoRdmaError(f"no RDMA: libibverbs is too old ({error})") from error
    return found


def gid_of(address: str) -> bytes:
    """The RoCE v2 GID of an IP address: IPv4 is mapped into IPv6."""
    ip = ipaddress.ip_address(address)
    return bytes(10) + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed


class QueuePair:
    """A device, a registered buffer and a queue pair; a context manager, at whose end nothing of them is left.

    netdev, address : of the NIC. Its GID is found by the address, as indices change. own : what the peer needs of it.
    Raises NoRdmaError.
    """

    def __init__(self, netdev: str, address: str) -> None:
        self._lib = library()
        self._stack = ExitStack()
        try:
            self._open(netdev, gid_of(address))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "QueuePair":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives all back, the queue pair first. What is under way is dropped."""
        self._stack.close()

    def _open(self, netdev: str, gid: bytes) -> None:
        lib, stack = self._lib, self._stack
        self._context, self._port, self._gid_index = self._find(netdev, gid)
        stack.callback(lib.ibv_close_device, self._context)
        attributes = ctypes.create_string_buffer(abi.PORT_ATTRIBUTES_BYTES)
        if number := lib.ibv_query_port(self._context, self._port, attributes):
            raise NoRdmaError(f"the port of {netdev} cannot be queried: {os.strerror(number)}")
        [mtu] = struct.unpack_from("=I", attributes, abi.ACTIVE_MTU_OFFSET)
        domain = _got(lib.ibv_alloc_pd(self._context), "protection domain")
        stack.callback(lib.ibv_dealloc_pd, domain)
        memory = mmap.mmap(-1, BUFFER_BYTES)
        self._buffer = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        access = abi.LOCAL_WRITE | abi.REMOTE_WRITE
        region = _got(lib.ibv_reg_mr(domain, self._buffer, BUFFER_BYTES, access), "locked memory (ulimit -l)")
        # The stack holds the buffer as long as the region.
        stack.callback(lambda _memory: lib.ibv_dereg_mr(region), memory)
        self._queue = _got(lib.ibv_create_cq(self._context, 2 * DEPTH, None, None, 0), "completion queue")
        stack.callback(lib.ibv_destroy_cq, self._queue)
        init = abi.PairInit(
            send_cq=self._queue,
            recv_cq=self._queue,
            capacity=abi.Capacity(DEPTH, 1, 1, 1, 0),
            type=abi.RELIABLE_CONNECTED,
        )
        self._pair = _got(lib.ibv_create_qp(domain, ctypes.byref(init)), "queue pair")
        stack.callback(lib.ibv_destroy_qp, self._pair)
        self._segment = abi.Segment(self._buffer, 0, region.contents.local_key)
        ops = ctypes.cast(self._context, ctypes.POINTER(abi.Context)).contents
        self._poll, self._post = abi.POLL(ops.poll_cq), abi.POST_SEND(ops.post_send)
        self._completions = (abi.Completion * DEPTH)()
        pair = self._pair.contents.number
        self.own = QueuePairEnd(
            pair, secrets.randbits(24), gid.hex(), max(1, mtu), region.contents.remote_key, self._buffer
        )
        wanted = abi.PairAttributes(state=abi.INIT, port=self._port, access=abi.REMOTE_WRITE)
        self._modify(wanted, abi.STATE | abi.PKEY_INDEX | abi.PORT | abi.ACCESS)

    def _find(self, netdev: str, gid: bytes) -> tuple[int, int, int]:
        """The context, port and GID index of the NIC."""
        lib = self._lib
        ifindex = socket.if_nametoindex(netdev)
        count = ctypes.c_int()
        devices = lib.ibv_get_device_list(ctypes.byref(count))
        if not devices:
            raise NoRdmaError(f"no RDMA: {os.strerror(ctypes.get_errno())}")
        refused = ""
        try:
            for i in range(count.value):
                context = lib.ibv_open_device(devices[i])
                if not context:
                    name = lib.ibv_get_device_name(devices[i]).decode(errors="replace")
                    refused = f": {name} cannot be opened, {os.strerror(ctypes.get_errno())}"
                    continue
                table = (abi.GidEntry * _MOST_GIDS)()
                found = lib._ibv_query_gid_table(context, table, _MOST_GIDS, 0, ctypes.sizeof(abi.GidEntry))
                for entry in table[: max(0, found)]:
                    of_netdev = entry.type == abi.ROCE_V2 and entry.ifindex == ifindex
                    if of_netdev and bytes(entry.gid) == gid and entry.index < 256:
                        return context, entry.port, entry.index
                lib.ibv_close_device(context)
        finally:
            lib.ibv_free_device_list(devices)
        raise NoRdmaError(f"no RDMA device has a RoCE v2 GID of {netdev} and its address{refused}")

    def _modify(self, attributes: abi.PairAttributes, mask: int) -> None:
        if number := self._lib.ibv_modify_qp(self._pair, ctypes.byref(attributes), mask):
            raise NoRdmaError(f"the queue pair does not take state {attributes.state}: {os.strerror(number)}")

    def connect(self, peer: QueuePairEnd) -> None:
        """To the other end, ready to send. Raises NoRdmaError."""
        wanted = abi.PairAttributes(
            state=abi.READY_TO_RECEIVE,
            path_mtu=min(self.own.mtu, peer.mtu),
            peer_number=peer.number,
            recv_psn=peer.psn,
            max_peer_reads=1,
            min_rnr_timer=12,
        )
        address = wanted.address
        ctypes.memmove(ctypes.addressof(address), bytes.fromhex(peer.gid), 16)
        address.source_gid_index, address.hop_limit = self._gid_index, _HOP_LIMIT
        address.is_global, address.port = 1, self._port
        self._modify(
            wanted,
            abi.STATE | abi.ADDRESS | abi.PATH_MTU | abi.PEER_NUMBER | abi.RECV_PSN | abi.MAX_PEER_READS
            | abi.MIN_RNR_TIMER,
        )  # fmt: skip
        wanted = abi.PairAttributes(
            state=abi.READY_TO_SEND,
            timeout=_TIMEOUT,
            retries=_RETRIES,
            rnr_retries=_RETRIES,
            send_psn=self.own.psn,
            max_reads=1,
        )
        self._modify(
            wanted,
            abi.STATE | abi.TIMEOUT | abi.RETRIES | abi.RNR_RETRIES | abi.SEND_PSN | abi.MAX_READS,
        )
        self._peer = peer

    def write(self, size: int) -> None:
        """Begins an RDMA WRITE of the first `size` bytes into the peer's buffer. Raises OSError."""
        self._segment.length = size
        request = abi.SendRequest(
            segments=ctypes.pointer(self._segment),
            segment_count=1,
            opcode=abi.WRITE,
            flags=abi.SIGNALED,
            remote_address=self._peer.address,
            remote_key=self._peer.key,
        )
        bad = ctypes.c_void_p()
        if number := self._post(self._pair_address, ctypes.byref(request), ctypes.byref(bad)):
            raise OSError(number, f"a write was not taken: {os.strerror(number)}")

    @property
    def _pair_address(self) -> int | None:
        return ctypes.cast(self._pair, ctypes.c_void_p).value

    def completed(self) -> list[int]:
        """The statuses of the writes that have ended since it was last asked; 0 is success. Raises OSError."""
        count = self._poll(self._queue, DEPTH, self._completions)
        if count < 0:
            raise OSError(f"the completion queue cannot be read ({count})")
        return [one.status for one in self._completions[:count]]


def _got(found: Any, what: str) -> Any:
    """Raises NoRdmaError where the library has given nothing."""
    if not found:
        raise NoRdmaError(f"no RDMA: no {what}: {os.strerror(ctypes.get_errno())}")
    return found
