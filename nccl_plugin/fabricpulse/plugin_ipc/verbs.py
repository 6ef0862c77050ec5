"""Telemetry of the verbs interposer in Python: reader of verbs_interposer/include/fabricpulse/verbs_telemetry.h.

The dtypes are the layout; tests/unit/verbs/test_layout.py has the C++ compiler confirm every offset.
"""

import enum
import fcntl
import ipaddress
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fabricpulse.core.files import open_regular
from fabricpulse.plugin_ipc.table_file import PATIENCE_S, Layout, Records, TableFile, TableFileKind, text

MAGIC = 0x314C455442565046
VERSION = 2
DELAY_BOUNDS = 20
OPCODES = (
    "write", "write_imm", "send", "send_imm", "read", "compare_swap", "fetch_add", "local_invalidate", "bind_window",
    "send_invalidate", "segmentation",
)  # fmt: skip
OPCODE_SLOTS = 16
# Names of enum ibv_wc_status, as rdma-core spells them without IBV_WC_ and _ERR.
STATUSES = (
    "success", "loc_len", "loc_qp_op", "loc_eec_op", "loc_prot", "wr_flush", "mw_bind", "bad_resp", "loc_access",
    "rem_inv_req", "rem_access", "rem_op", "retry_exc", "rnr_retry_exc", "loc_rdd_viol", "rem_inv_rd_req",
    "rem_abort", "inv_eecn", "inv_eec_state", "fatal", "resp_timeout", "general", "tm", "tm_rndv_incomplete",
)  # fmt: skip
UNKNOWN_RANK = 0xFFFFFFFF


class VerbsTable(enum.IntEnum):
    """enum fp_verbs_table."""

    DEVICES = 0
    QUEUE_PAIRS = 1
    TOTALS = 2
    SAMPLES = 3


class Bypass(enum.IntFlag):
    """enum fp_verbs_bypass."""

    DIRECT = 1
    DEVX = 2


def _layout(*fields: Any) -> Layout:
    return np.dtype(list(fields), align=True)


HISTOGRAM = _layout(("count", "u8"), ("sum_ns", "u8"), ("buckets", "u8", (DELAY_BOUNDS + 1,)))
TABLE_INFO = _layout(("offset", "u8"), ("record_size", "u4"), ("capacity", "u4"))
HEADER = _layout(
    ("magic", "u8"), ("version", "u4"), ("size", "u4"), ("file_size", "u8"), ("pid", "u4"), ("rank", "u4"),
    ("pid_start_ticks", "u8"), ("start_raw_ns", "i8"), ("tables_sequence", "u8"), ("samples_next", "u8"),
    ("sample_every", "u8"), ("dropped_records", "u8"), ("unseen_posts", "u8"), ("unseen_completions", "u8"),
    ("bypass", "u8"), ("host", "S96"), ("workload", "S128"), ("library_version", "S32"),
    ("delay_bounds_ns", "u8", (DELAY_BOUNDS,)), ("tables", TABLE_INFO, (len(VerbsTable),)),
)  # fmt: skip
DEVICE = _layout(
    ("sequence", "u4"), ("state", "u4"), ("name", "S32"), ("contexts", "u4"), ("reserved0", "u4")
)
COUNTERS = _layout(
    ("posts", "u8", (OPCODE_SLOTS,)), ("bytes", "u8", (OPCODE_SLOTS,)), ("refused_posts", "u8"),
    ("receives_posted", "u8"), ("completions", "u8"), ("receives", "u8"), ("received_bytes", "u8"),
    ("messages_sent", "u8"), ("messages_received", "u8"), ("errors", "u8", (len(STATUSES),)),
    ("untracked_posts", "u8"), ("delay", HISTOGRAM),
)  # fmt: skip
QUEUE_PAIR = _layout(
    ("sequence", "u4"), ("state", "u4"), ("generation", "u4"), ("device", "u4"), ("number", "u4"),
    ("peer_number", "u4"), ("type", "u4"), ("qp_state", "u4"), ("port", "u4"), ("peer_lid", "u4"),
    ("send_psn", "u4"), ("recv_psn", "u4"), ("local_gid", "V16"), ("peer_gid", "V16"), ("netdev", "S16"),
    ("incarnation", "u4"), ("source_port", "u2"), ("traffic_class", "u1"), ("reserved0", "u1"),
    ("message_index", "u8"), ("receive_index", "u8"), ("outstanding", "u8"),
    ("outstanding_signaled", "u8"), ("outstanding_receives", "u8"), ("oldest_post_raw_ns", "u8"),
    ("last_post_raw_ns", "u8"), ("last_progress_raw_ns", "u8"),
    ("stall_ns_max", "u8"), ("counters", COUNTERS),
)  # fmt: skip
TOTAL = _layout(
    ("sequence", "u4"), ("state", "u4"), ("device", "u4"), ("peer_lid", "u4"), ("peer_gid", "V16"),
    ("netdev", "S16"), ("port", "u4"), ("reserved0", "u4"), ("counters", COUNTERS),
)  # fmt: skip
SAMPLE = _layout(
    ("commit", "u8"), ("raw_ns", "i8"), ("message", "u8"), ("bytes", "u8"), ("direction", "u4"), ("number", "u4"),
    ("peer_number", "u4"), ("psn", "u4"), ("local_gid", "V16"), ("peer_gid", "V16"), ("netdev", "S16"),
    ("incarnation", "u4"), ("device", "u4"),
)  # fmt: skip
LAYOUTS: dict[str, Layout] = {
    "fp_verbs_histogram": HISTOGRAM,
    "fp_verbs_table_info": TABLE_INFO,
    "fp_verbs_header": HEADER,
    "fp_verbs_device": DEVICE,
    "fp_verbs_counters": COUNTERS,
    "fp_verbs_queue_pair": QUEUE_PAIR,
    "fp_verbs_total": TOTAL,
    "fp_verbs_sample": SAMPLE,
}
_TABLES: dict[int, Layout] = {
    VerbsTable.DEVICES: DEVICE,
    VerbsTable.QUEUE_PAIRS: QUEUE_PAIR,
    VerbsTable.TOTALS: TOTAL,
}
# The interposer's own numbers (verbs_file.h): records become series.
_MOST: dict[int, int] = {
    VerbsTable.DEVICES: 64,
    VerbsTable.QUEUE_PAIRS: 4096,
    VerbsTable.TOTALS: 1024,
}
MAX_BYTES = 16 << 20
_KIND = TableFileKind(MAGIC, VERSION, HEADER, _TABLES, _MOST, MAX_BYTES)


@dataclass(frozen=True)
class VerbsSnapshot:
    """One consistent copy of a file. queue_pairs, totals : records in use, named as in the header.

    owner : user id that the kernel gives for the file. running : its writer holds its lock.
    """

    pid: int
    rank: int | None
    pid_start_ticks: int
    start_raw_ns: int
    sample_every: int
    samples_next: int
    dropped_records: int
    unseen_posts: int
    unseen_completions: int
    bypass: Bypass
    host: str
    workload: str
    library_version: str
    delay_bounds_ns: tuple[int, ...]
    devices: dict[int, str]
    queue_pairs: Records
    totals: Records
    owner: int
    running: bool

    @property
    def process(self) -> tuple[int, int, int, int]:
        """Tells the writer from all others of this machine."""
        return self.owner, self.pid, self.pid_start_ticks, self.start_raw_ns


class VerbsTelemetryReader(TableFile):
    """Reads one `<name>.verbs`."""

    def __init__(self, path: Path) -> None:
        """Raises LayoutError for another layout, a table that leaves the file or an absurd size; OSError else."""
        super().__init__(path, _KIND)

    def read(self, patience_s: float = PATIENCE_S) -> VerbsSnapshot:
        """One consistent copy; raises what TableFile.read_tables does."""
        header, tables, slots = self.read_tables(patience_s)
        devices = zip(slots[VerbsTable.DEVICES], tables[VerbsTable.DEVICES], strict=True)
        rank = int(header["rank"])
        return VerbsSnapshot(
            pid=int(header["pid"]),
            rank=None if rank == UNKNOWN_RANK else rank,
            pid_start_ticks=int(header["pid_start_ticks"]),
            start_raw_ns=int(header["start_raw_ns"]),
            sample_every=int(header["sample_every"]),
            samples_next=int(header["samples_next"]),
            dropped_records=int(header["dropped_records"]),
            unseen_posts=int(header["unseen_posts"]),
            unseen_completions=int(header["unseen_completions"]),
            bypass=Bypass(int(header["bypass"]) & int(Bypass.DIRECT | Bypass.DEVX)),
            host=text(header["host"]),
            workload=text(header["workload"]),
            library_version=text(header["library_version"]),
            delay_bounds_ns=tuple(int(bound) for bound in header["delay_bounds_ns"]),
            devices={int(slot): text(record["name"]) for slot, record in devices},
            queue_pairs=tables[VerbsTable.QUEUE_PAIRS],
            totals=tables[VerbsTable.TOTALS],
            owner=self.owner,
            running=is_locked(self.path),
        )


def is_locked(path: Path) -> bool:
    """Whether the writer of a file lives: it holds an exclusive lock. False when the file cannot be opened."""
    with suppress(OSError):
        descriptor = open_regular(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def peer_name(gid: bytes, lid: int) -> str:
    """The address in a GID (IPv4 where it is one), `lid:N` of an InfiniBand port, "" when not connected."""
    if not any(gid):
        return f"lid:{lid}" if lid else ""
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)
