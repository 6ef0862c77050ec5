"""TX stamps while packets wait in the host's own queue to a link that is too slow, until none fits in any more."""

import subprocess

import pytest
from tests.fixtures.native.programs import native

pytestmark = pytest.mark.root

# Two devices of one network namespace that send to each other over their link.
_LINK = """
set -e
ip link add fp0 type veth peer name fp1
ip link set fp1 address 02:00:00:00:00:02
ip addr add 10.9.0.1/32 dev fp0; ip addr add 10.9.0.2/32 dev fp1
for device in lo fp0 fp1; do ip link set $device up; done
for device in all fp0 fp1; do
  echo 0 > /proc/sys/net/ipv4/conf/$device/rp_filter
  echo 1 > /proc/sys/net/ipv4/conf/$device/accept_local
done
ip neigh add 10.9.0.2 dev fp0 lladdr 02:00:00:00:00:02
ip route add 10.9.0.2/32 dev fp0
ip rule add pref 10 iif fp1 lookup local
ip rule add pref 20 lookup main
ip rule add pref 30 lookup local
ip rule del pref 0
tc qdisc add dev fp0 root tbf rate 2mbit burst 3000 limit 2000000
exec "$@"
"""


@pytest.mark.parametrize("kernel", [[], ["old"]], ids=["present", "old"])
def test_no_stamp_is_of_another_packet(kernel: list[str]) -> None:
    """Once a send had failed packets were numbered from 0 again, and those that waited had these numbers: nearly all TX
    stamps were too early, by what packets wait. Before Linux 6.13 there are none until the queue has been empty.
    """
    program = native("queued_stamps", "address")
    command = ["unshare", "-n", "sh", "-c", _LINK, "sh", str(program), "10.9.0.1", "10.9.0.2", "60", "120"]
    done = subprocess.run([*command, *kernel], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    right, wrong, late, failed = map(int, done.stdout.split())
    assert failed > 1000
    assert wrong == 0
    assert right > late > 100
