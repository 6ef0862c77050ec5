"""A pair of reliable connected queue pairs by pyverbs, for tests inside the guest."""

import select
import time
from pathlib import Path
from typing import Any

from fabricpulse.lab.rdma.pyverbs import require_pyverbs

require_pyverbs()

import pyverbs.enums as e  # noqa: E402 - only there once require_pyverbs has found it
from pyverbs.addr import AHAttr, GlobalRoute  # noqa: E402
from pyverbs.cq import CQ  # noqa: E402
from pyverbs.device import Context  # noqa: E402
from pyverbs.mr import MR  # noqa: E402
from pyverbs.pd import PD  # noqa: E402
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr  # noqa: E402
from pyverbs.wr import SGE, RecvWR, SendWR  # noqa: E402

_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
_RTR = (
    e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
    | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
)  # fmt: skip
_RTS = (
    e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN
    | e.IBV_QP_MAX_QP_RD_ATOMIC
)  # fmt: skip
_PSN = 0x1000


class End:
    """One end: a device with a registered buffer and a queue pair.

    address : IPv4 of the netdev; the GID is looked up by it, as its index changes when addresses come and go.
    """

    def __init__(self, device: str, address: str, size: int = 1 << 20, depth: int = 64) -> None:
        descriptors = Path("/proc/self/fd")
        before = set(descriptors.iterdir())
        self.context = Context(name=device)
        # pyverbs hides async_fd, and get_async_event() blocks with the interpreter's lock held: poll the descriptor.
        new = {path for path in descriptors.iterdir() if path.is_symlink()} - before
        [self._events] = [int(path.name) for path in new if "infinibandevent" in str(path.readlink())]
        self.gid_index = self._find_gid(address)
        self._domain = PD(self.context)
        self.memory = MR(self._domain, size, _ACCESS)
        self._completions = CQ(self.context, 4 * depth)
        capacity = QPCap(max_send_wr=depth, max_recv_wr=depth, max_inline_data=0)
        attributes = QPInitAttr(
            qp_type=e.IBV_QPT_RC, scq=self._completions, rcq=self._completions, cap=capacity, sq_sig_all=1
        )
        self.pair = QP(self._domain, attributes)

    def _find_gid(self, address: str) -> int:
        wanted = "".join(f"{int(part):02x}" for part in address.split("."))
        for index in range(16):
            text = str(self.context.query_gid(1, index))
            if text.replace(":", "").endswith("ffff" + wanted):
                return index
        raise AssertionError(f"no GID of {address}")

    def connect(
        self, peer: "End", *, timeout: int = 14, retries: int = 6, flow_label: int = 0, traffic_class: int = 0
    ) -> None:
        """RESET to RTS. timeout : 4.096 us * 2**timeout a try. retries : at most 6; rxe takes 7 for endless."""
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = _ACCESS
        self.pair.to_init(attributes)
        attributes = QPAttr(port_num=1)
        attributes.qp_state = e.IBV_QPS_RTR
        attributes.path_mtu = self.context.query_port(1).active_mtu
        attributes.dest_qp_num, attributes.rq_psn = peer.pair.qp_num, _PSN
        attributes.max_dest_rd_atomic, attributes.min_rnr_timer = 1, 12
        route = GlobalRoute(
            dgid=peer.context.query_gid(1, peer.gid_index),
            sgid_index=self.gid_index,
            hop_limit=64,
            flow_label=flow_label,
            traffic_class=traffic_class,
        )
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.pair.modify(attributes, _RTR)
        attributes = QPAttr(port_num=1)
        attributes.qp_state = e.IBV_QPS_RTS
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = timeout, retries, 7
        attributes.sq_psn, attributes.max_rd_atomic = _PSN, 1
        self.pair.modify(attributes, _RTS)

    def post_receive(self) -> None:
        """Takes one immediate."""
        self.pair.post_recv(RecvWR(num_sge=1, sg=[SGE(self.memory.buf, 4, self.memory.lkey)]))

    def post_write(self, peer: "End", size: int, immediate: int | None = None) -> None:
        """An RDMA WRITE of the first `size` bytes of the buffer into the peer's."""
        opcode = e.IBV_WR_RDMA_WRITE if immediate is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        order = SendWR(
            opcode=opcode,
            num_sge=1,
            sg=[SGE(self.memory.buf, size, self.memory.lkey)],
            send_flags=e.IBV_SEND_SIGNALED,
            imm_data=immediate or 0,
        )
        order.set_wr_rdma(peer.memory.rkey, peer.memory.buf)
        self.pair.post_send(order)

    def completion(self, seconds: float = 60.0) -> Any:
        """The next completion. Fails after `seconds`, many times what it takes: a guest sees no load of its machine."""
        deadline = time.monotonic() + seconds
        while True:
            count, found = self._completions.poll(1)
            if count:
                return found[0]
            assert time.monotonic() < deadline, "no completion"
            time.sleep(0.0005)

    def event(self, seconds: float) -> int | None:
        """The type of the next event of the device, None when there is none in `seconds`."""
        ready, _, _ = select.select([self._events], [], [], seconds)
        if not ready:
            return None
        event = self.context.get_async_event()
        kind = int(event.event_type)
        event.ack()
        return kind

    def port_active(self) -> bool:
        """Whether the port says ACTIVE."""
        return bool(self.context.query_port(1).state == e.IBV_PORT_ACTIVE)
