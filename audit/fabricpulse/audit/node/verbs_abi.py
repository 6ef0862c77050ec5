"""The part of libibverbs' binary interface that one queue pair needs, for ctypes.

Source: rdma-core, libibverbs/verbs.h; the layouts are those of IBVERBS_1.1 and have not changed since. What is left out
of the end of a structure that the library fills is room (`later`).
"""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_int,
    c_size_t,
    c_ssize_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

# enum ibv_wc_status: what is reported by name; others by their number.
STATUS_NAMES = {
    1: "local length error", 2: "local queue pair error", 4: "local protection error", 5: "flushed",
    8: "local access error", 9: "remote invalid request", 10: "remote access error", 11: "remote operation error",
    12: "retries exceeded", 13: "receiver not ready", 21: "general error",
}  # fmt: skip
SUCCESS, FLUSHED, RETRIES_EXCEEDED = 0, 5, 12
ROCE_V2, RELIABLE_CONNECTED, WRITE, SIGNALED = 2, 2, 0, 2
LOCAL_WRITE, REMOTE_WRITE = 1, 2
INIT, READY_TO_RECEIVE, READY_TO_SEND, ERROR = 1, 2, 3, 6
# enum ibv_qp_attr_mask
STATE, ACCESS, PKEY_INDEX, PORT, ADDRESS, PATH_MTU = 1, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8
TIMEOUT, RETRIES, RNR_RETRIES, RECV_PSN, MAX_READS = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
MIN_RNR_TIMER, SEND_PSN, MAX_PEER_READS, PEER_NUMBER = 1 << 15, 1 << 16, 1 << 17, 1 << 20
# enum ibv_mtu
ACTIVE_MTU_OFFSET, PORT_ATTRIBUTES_BYTES = 8, 1024


class GidEntry(Structure):
    """struct ibv_gid_entry"""

    _fields_ = (
        ("gid", c_uint64 * 2),
        ("index", c_uint32),
        ("port", c_uint32),
        ("type", c_uint32),
        ("ifindex", c_uint32),
    )


class Context(Structure):
    """struct ibv_context: poll_cq and post_send are called through it, not through the library."""

    _fields_ = (
        ("device", c_void_p),
        ("before_poll", c_void_p * 11),
        ("poll_cq", c_void_p),
        ("between", c_void_p * 13),
        ("post_send", c_void_p),
        ("after", c_void_p * 6),
        ("command_fd", c_int),
        ("async_fd", c_int),
    )


class MemoryRegion(Structure):
    """struct ibv_mr"""

    _fields_ = (
        ("context", c_void_p),
        ("domain", c_void_p),
        ("address", c_void_p),
        ("length", c_size_t),
        ("handle", c_uint32),
        ("local_key", c_uint32),
        ("remote_key", c_uint32),
    )


class Pair(Structure):
    """struct ibv_qp, its beginning"""

    _fields_ = (*((name, c_void_p) for name in "abcdef"), ("handle", c_uint32), ("number", c_uint32))


class Capacity(Structure):
    """struct ibv_qp_cap"""

    _fields_ = tuple(
        (name, c_uint32) for name in ("sends", "receives", "segments", "receive_segments", "inline")
    )


class PairInit(Structure):
    """struct ibv_qp_init_attr"""

    _fields_ = (
        ("user", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("capacity", Capacity),
        ("type", c_uint32),
        ("signal_all", c_int),
    )


class _AddressHandle(Structure):
    """struct ibv_ah_attr with its ibv_global_route"""

    _fields_ = (
        ("gid", c_uint64 * 2),
        ("flow_label", c_uint32),
        ("source_gid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
        # ibv_global_route ends with its alignment, 24 bytes.
        ("padding", c_uint8),
        ("lid", c_uint16),
        ("service_level", c_uint8),
        ("source_path_bits", c_uint8),
        ("static_rate", c_uint8),
        ("is_global", c_uint8),
        ("port", c_uint8),
    )


class PairAttributes(Structure):
    """struct ibv_qp_attr"""

    _fields_ = (
        *((name, c_uint32) for name in ("state", "current_state", "path_mtu", "migration", "qkey")),
        *((name, c_uint32) for name in ("recv_psn", "send_psn", "peer_number", "access")),
        ("capacity", Capacity),
        ("address", _AddressHandle),
        ("alternate", _AddressHandle),
        ("pkey_index", c_uint16),
        ("alternate_pkey_index", c_uint16),
        *((name, c_uint8) for name in ("async_notify", "draining", "max_reads", "max_peer_reads")),
        *((name, c_uint8) for name in ("min_rnr_timer", "port", "timeout", "retries", "rnr_retries")),
        *((name, c_uint8) for name in ("alternate_port", "alternate_timeout")),
        ("rate_limit", c_uint32),
    )


class Segment(Structure):
    """struct ibv_sge"""

    _fields_ = (("address", c_uint64), ("length", c_uint32), ("local_key", c_uint32))


class SendRequest(Structure):
    """struct ibv_send_wr"""

    _fields_ = (
        ("id", c_uint64),
        ("next", c_void_p),
        ("segments", POINTER(Segment)),
        ("segment_count", c_int),
        ("opcode", c_uint32),
        ("flags", c_uint32),
        ("immediate", c_uint32),
        ("remote_address", c_uint64),
        ("remote_key", c_uint32),
        ("unused", c_uint64 * 9),
    )


class Completion(Structure):
    """struct ibv_wc"""

    _fields_ = (
        ("id", c_uint64),
        *((name, c_uint32) for name in ("status", "opcode", "vendor_error", "bytes", "immediate")),
        *((name, c_uint32) for name in ("pair", "source_pair", "flags")),
        ("pkey_index", c_uint16),
        ("source_lid", c_uint16),
        ("service_level", c_uint8),
        ("path_bits", c_uint8),
    )


POLL = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, POINTER(Completion))
POST_SEND = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(SendRequest), POINTER(c_void_p))

# name -> result, arguments
FUNCTIONS = (
    ("ibv_get_device_list", POINTER(c_void_p), (POINTER(c_int),)),
    ("ibv_free_device_list", None, (POINTER(c_void_p),)),
    ("ibv_get_device_name", ctypes.c_char_p, (c_void_p,)),
    ("ibv_open_device", c_void_p, (c_void_p,)),
    ("ibv_close_device", c_int, (c_void_p,)),
    ("ibv_query_port", c_int, (c_void_p, c_uint8, c_void_p)),
    # Since rdma-core 32 (2020).
    ("_ibv_query_gid_table", c_ssize_t, (c_void_p, POINTER(GidEntry), c_size_t, c_uint32, c_size_t)),
    ("ibv_alloc_pd", c_void_p, (c_void_p,)),
    ("ibv_dealloc_pd", c_int, (c_void_p,)),
    ("ibv_reg_mr", POINTER(MemoryRegion), (c_void_p, c_void_p, c_size_t, c_int)),
    ("ibv_dereg_mr", c_int, (POINTER(MemoryRegion),)),
    ("ibv_create_cq", c_void_p, (c_void_p, c_int, c_void_p, c_void_p, c_int)),
    ("ibv_destroy_cq", c_int, (c_void_p,)),
    ("ibv_create_qp", POINTER(Pair), (c_void_p, POINTER(PairInit))),
    ("ibv_modify_qp", c_int, (POINTER(Pair), POINTER(PairAttributes), c_int)),
    ("ibv_destroy_qp", c_int, (POINTER(Pair),)),
)  # fmt: skip
