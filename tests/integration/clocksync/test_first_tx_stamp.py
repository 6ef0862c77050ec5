"""chronyd in the lab is given one transmit stamp a packet, the first: tests/native/clocks/first_tx_stamp.c."""

import os
import sys
from pathlib import Path

import pytest
from tests.bench.clocksync.peers import build_preload

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

# Sends packets and prints the transmit stamps of each, ns, as the kernel gives them: each packet's number is its tail.
SENDER = """
import select, socket, struct, sys
TIMESTAMPING, TX, REPORT = 37, 1 << 1, 1 << 4
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, TIMESTAMPING, TX | REPORT)
for number in range(20):
    s.sendto(number.to_bytes(48, "big"), (sys.argv[1], 9))
    stamps = []
    while len(stamps) < 2:
        poll = select.poll()
        poll.register(s, 0)
        assert poll.poll(5000), f"packet {number} has {len(stamps)} stamps"
        data, control, *_ = s.recvmsg(2048, 2048, socket.MSG_ERRQUEUE)
        if int.from_bytes(data[-48:], "big") != number:
            continue
        for level, kind, value in control:
            if (level, kind) == (socket.SOL_SOCKET, TIMESTAMPING):
                seconds, ns = struct.unpack_from("qq", value)
                stamps.append(seconds * 10**9 + ns)
    print(*stamps)
"""


def stamps(lab: Lab, preload: Path | None) -> list[tuple[int, int]]:
    """Both stamps of twenty packets from the first host to the second."""
    near, far = lab.hosts
    environment = {} if preload is None else {"LD_PRELOAD": os.fspath(preload)}
    result = near.run([sys.executable, "-c", SENDER, far.nic("rail0").address], env=environment)
    assert result.returncode == 0, result.stderr
    pairs = [tuple(map(int, line.split())) for line in result.stdout.splitlines()]
    return [(first, second) for first, second in pairs]


def test_the_second_stamp_is_that_of_the_first(tmp_path: Path) -> None:
    """Without it they differ by the way to the router and through its queue."""
    with Lab(hosts=2, rails=1) as lab:
        assert all(second > first for first, second in stamps(lab, None))
        assert all(
            second == first for first, second in stamps(lab, build_preload(tmp_path, "first_tx_stamp"))
        )
