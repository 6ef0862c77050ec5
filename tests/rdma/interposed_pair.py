"""A program with verbs of its own: run with the interposer loaded, it prints what it has posted and polled.

Arguments: two RDMA devices with the address of each, and how many messages. A message is an RDMA WRITE and one with
immediate data.
"""

import json
import sys

from tests.rdma.queue_pair import End

WRITTEN, NOTIFIED = 3000, 200


def main() -> None:
    """Sends all messages from the first device to the second."""
    here, there = End(sys.argv[1], sys.argv[2]), End(sys.argv[3], sys.argv[4])
    here.connect(there)
    there.connect(here)
    messages = int(sys.argv[5])
    for number in range(messages):
        there.post_receive()
        here.post_write(there, WRITTEN)
        here.post_write(there, NOTIFIED, immediate=number)
        assert [here.completion().status, here.completion().status] == [0, 0]
        received = there.completion()
        assert (received.status, received.imm_data) == (0, number)
    print(json.dumps({"posts": 2 * messages, "bytes": messages * (WRITTEN + NOTIFIED), "messages": messages}))


main()
