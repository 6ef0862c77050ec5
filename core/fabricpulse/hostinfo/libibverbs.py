"""Asynchronous events of verbs devices, from the system's libibverbs.

Called through ctypes, not pyverbs: what is needed are nine functions and four structures that have not changed since
libibverbs 1.0, and pyverbs is a package of the system's Python that a virtual environment does not see.
"""

import ctypes
import ctypes.util
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from fabricpulse.core.log import get_logger

log = get_logger(__name__)

# enum ibv_event_type (infiniband/verbs.h).
EVENT_NAMES = (
    "cq_err", "qp_fatal", "qp_req_err", "qp_access_err", "comm_est", "sq_drained", "path_mig", "path_mig_err",
    "device_fatal", "port_active", "port_err", "lid_change", "pkey_change", "sm_change", "srq_err",
    "srq_limit_reached", "qp_last_wqe_reached", "client_reregister", "gid_change", "wq_fatal",
)  # fmt: skip
# Those that name a port; a dual-port device reports both ports here, so the number must be checked.
PORT_EVENTS = frozenset(
    {"port_active", "port_err", "lid_change", "pkey_change", "sm_change", "client_reregister", "gid_change"}
)
# offsetof(struct ibv_device_attr, max_qp); the structure is 232 bytes.
_MAX_QP_OFFSET, _DEVICE_ATTR_BYTES = 108, 1024

# struct ibv_port_attr as of libibverbs 1.0, which ibv_query_port fills to this day: active_mtu (enum ibv_mtu), and the
# counts of keys that did not fit.
_PORT_ATTR_BYTES = 1024
_ACTIVE_MTU_OFFSET, _BAD_PKEY_OFFSET, _BAD_QKEY_OFFSET = 8, 24, 28

# (device, event name, port or 0). Called on a thread of its own.
OnEvent = Callable[[str, str, int], None]


@dataclass(frozen=True)
class PortAttributes:
    """What ibv_query_port has and sysfs has not.

    active_mtu : RDMA's path MTU in octets, 0 if unknown. bad_pkeys, bad_qkeys : packets whose partition or queue key
    did not fit; 16 bits wide in InfiniBand's PortInfo, where they stop at the end.
    """

    active_mtu: int
    bad_pkeys: int
    bad_qkeys: int


class _AsyncEvent(ctypes.Structure):
    """struct ibv_async_event: a union of pointers and the port number, then the type."""

    _fields_ = (("element", ctypes.c_uint64), ("event_type", ctypes.c_int))


class Verbs:
    """libibverbs, if the system has it."""

    def __init__(self, library: str | None = None) -> None:
        """Raises OSError when there is no libibverbs."""
        name = library or ctypes.util.find_library("ibverbs") or "libibverbs.so.1"
        self._lib = ctypes.CDLL(name, use_errno=True)
        for function, result, arguments in (
            ("ibv_get_device_list", ctypes.POINTER(ctypes.c_void_p), (ctypes.POINTER(ctypes.c_int),)),
            ("ibv_free_device_list", None, (ctypes.POINTER(ctypes.c_void_p),)),
            ("ibv_get_device_name", ctypes.c_char_p, (ctypes.c_void_p,)),
            ("ibv_open_device", ctypes.c_void_p, (ctypes.c_void_p,)),
            ("ibv_close_device", ctypes.c_int, (ctypes.c_void_p,)),
            ("ibv_query_device", ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
            ("ibv_query_port", ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p)),
            ("ibv_get_async_event", ctypes.c_int, (ctypes.c_void_p, ctypes.POINTER(_AsyncEvent))),
            ("ibv_ack_async_event", None, (ctypes.POINTER(_AsyncEvent),)),
        ):
            entry = getattr(self._lib, function)
            entry.restype, entry.argtypes = result, arguments

    def open(self, device: str) -> "VerbsDevice":
        """Raises OSError when the device is not there or may not be opened."""
        count = ctypes.c_int()
        devices = self._lib.ibv_get_device_list(ctypes.byref(count))
        if not devices:
            number = ctypes.get_errno()
            raise OSError(number, f"no list of verbs devices: {os.strerror(number)}")
        try:
            for i in range(count.value):
                if self._lib.ibv_get_device_name(devices[i]) == device.encode():
                    context = self._lib.ibv_open_device(devices[i])
                    if not context:
                        number = ctypes.get_errno()
                        raise OSError(
                            number, f"verbs device {device} cannot be opened: {os.strerror(number)}"
                        )
                    return VerbsDevice(self._lib, device, context)
        finally:
            self._lib.ibv_free_device_list(devices)
        raise FileNotFoundError(2, f"no verbs device {device}")


class VerbsDevice:
    """An open device whose events a thread follows until the device goes."""

    def __init__(self, lib: ctypes.CDLL, name: str, context: int) -> None:
        self._lib = lib
        self._context = context
        self.name = name
        self.is_open = True

    def max_queue_pairs(self) -> int:
        """ibv_query_device's max_qp. Raises OSError."""
        buffer = ctypes.create_string_buffer(_DEVICE_ATTR_BYTES)
        number = self._lib.ibv_query_device(self._context, buffer)
        if number:
            raise OSError(number, f"verbs device {self.name} cannot be queried: {os.strerror(number)}")
        return int(struct.unpack_from("=i", buffer, _MAX_QP_OFFSET)[0])

    def port(self, number: int) -> PortAttributes:
        """ibv_query_port; asks the firmware on most devices. Raises OSError."""
        buffer = ctypes.create_string_buffer(_PORT_ATTR_BYTES)
        error = self._lib.ibv_query_port(self._context, number, buffer)
        if error:
            raise OSError(error, f"port {number} of {self.name} cannot be queried: {os.strerror(error)}")
        mtu = struct.unpack_from("=i", buffer, _ACTIVE_MTU_OFFSET)[0]
        bad_pkeys = struct.unpack_from("=I", buffer, _BAD_PKEY_OFFSET)[0]
        bad_qkeys = struct.unpack_from("=I", buffer, _BAD_QKEY_OFFSET)[0]
        return PortAttributes(128 << mtu if 1 <= mtu <= 5 else 0, bad_pkeys, bad_qkeys)

    def follow(self, on_event: OnEvent) -> None:
        """Starts the thread. A daemon: nothing wakes it while it waits for an event, so it ends with the process."""
        threading.Thread(
            target=self._follow, args=(on_event,), name=f"verbs-{self.name}", daemon=True
        ).start()

    def _follow(self, on_event: OnEvent) -> None:
        event = _AsyncEvent()
        while self._lib.ibv_get_async_event(self._context, ctypes.byref(event)) == 0:
            kind = event.event_type
            name = EVENT_NAMES[kind] if 0 <= kind < len(EVENT_NAMES) else "other"
            # The port number is an int in a union with pointers.
            port = event.element & 0xFFFFFFFF if name in PORT_EVENTS else 0
            self._lib.ibv_ack_async_event(ctypes.byref(event))
            on_event(self.name, name, port)
        self.is_open = False
        self._lib.ibv_close_device(self._context)
        log.info("verbs device has gone", device=self.name)
