"""A program with queue pairs of its own: run with the interposer loaded, it prints over which spine the packets of each
go, and keeps them until its input ends.

Arguments: two RDMA devices with the address of each, and how many queue pairs; every other one has a flow label.
"""

import json
import sys

from tests.rdma.queue_pair import End
from tests.rdma.routed_pair import SPINES, RoutedPair

WRITTEN, OTHERS = 60_000, 20_000  # bytes; of neighbours' questions, far less


def main() -> None:
    """Sends from the first device to the second."""
    routed, spines, ends = RoutedPair(), {}, []
    for number in range(int(sys.argv[5])):
        here, there = (End(sys.argv[first], sys.argv[first + 1], 1 << 16) for first in (1, 3))
        label = 0x12345 * number & 0xFFFFF if number % 2 else 0
        here.connect(there, flow_label=label, traffic_class=32)
        there.connect(here, flow_label=label)
        ends.append((here, there))
        before = routed.carried("r0")
        here.post_write(there, WRITTEN)
        assert here.completion().status == 0
        grown = [now - then for now, then in zip(routed.carried("r0"), before, strict=True)]
        (spine,) = (spine for spine in range(SPINES) if grown[spine] > OTHERS)
        spines[here.pair.qp_num] = spine
    print(json.dumps(spines), flush=True)
    for _ in sys.stdin:  # after each line a message by every queue pair
        for here, there in ends:
            here.post_write(there, WRITTEN)
            assert here.completion().status == 0
        print("sent", flush=True)


main()
