"""Two hosts with Soft-RoCE below two leaves, with spines between: routers that hash addresses, protocol and ports.

    r0:eth --- l0 --- s<i> --- l1 --- r1:eth

For tests inside the guest.
"""

from dataclasses import dataclass

from fabricpulse.lab.rdma.fleet import batch, run

HOSTS = ("r0", "r1")
SPINES = 4
_MTU = 4500


@dataclass(frozen=True)
class RoutedPair:
    """A pair that is up."""

    def device(self, host: str) -> str:
        """The RDMA device of a host."""
        return f"rxe-{host}"

    def address(self, host: str) -> str:
        """Of its NIC, `eth-r0` or `eth-r1`."""
        return f"10.7.{HOSTS.index(host)}.2"

    def carried(self, host: str) -> list[int]:
        """Of each spine the bytes that have come from the leaf of a host."""
        files = [f"/sys/class/net/up{spine}/statistics/tx_bytes" for spine in range(SPINES)]
        return [int(line) for line in run("ip", "netns", "exec", self.leaf(host), "cat", *files).split()]

    def leaf(self, host: str) -> str:
        """Its leaf."""
        return f"l{HOSTS.index(host)}"

    def way(self, spine: int) -> tuple[str, str, str]:
        """The addresses that answer traces from the first host to the second over a spine."""
        return "10.7.0.1", f"10.6.{2 * spine}.2", f"10.6.{2 * spine + 1}.1"


def build_routed() -> RoutedPair:
    """Builds it in this guest. Raises CalledProcessError."""
    routers = ("l0", "l1", *(f"s{number}" for number in range(SPINES)))
    for node in (*HOSTS, *routers):
        run("ip", "netns", "add", node)
        run("ip", "-n", node, "link", "set", "lo", "up")
    for node in routers:
        folder = "/proc/sys/net/ipv4"
        settings = {"ip_forward": 1, "fib_multipath_hash_policy": 1, "icmp_ratelimit": 0}
        script = "; ".join(f"echo {value} >{folder}/{name}" for name, value in settings.items())
        run("ip", "netns", "exec", node, "sh", "-c", script)
    for number, host in enumerate(HOSTS):
        leaf = f"l{number}"
        _link(f"eth-{host}", host, "edge", leaf)
        batch(["-n", leaf], [f"address add 10.7.{number}.1/24 dev edge", "link set edge up"])
        batch(["-n", host], [f"address add 10.7.{number}.2/24 dev eth-{host}", f"link set eth-{host} up"])
        batch(["-n", host], [f"route add default via 10.7.{number}.1"])
        for spine in range(SPINES):
            net = f"10.6.{2 * spine + number}"
            _link(f"up{spine}", leaf, f"d{number}", f"s{spine}")
            batch(["-n", leaf], [f"address add {net}.1/24 dev up{spine}", f"link set up{spine} up"])
            batch(
                ["-n", f"s{spine}"],
                [
                    f"address add {net}.2/24 dev d{number}",
                    f"link set d{number} up",
                    f"route add 10.7.{number}.0/24 via {net}.1",
                ],
            )
    for number in range(len(HOSTS)):
        ways = " ".join(f"nexthop via 10.6.{2 * spine + number}.2" for spine in range(SPINES))
        batch(["-n", f"l{number}"], [f"route add 10.7.{1 - number}.0/24 {ways}"])
    for host in HOSTS:
        link = ["rdma", "link", "add", f"rxe-{host}", "type", "rxe", "netdev", f"eth-{host}"]
        run("ip", "netns", "exec", host, *link)
    return RoutedPair()


def _link(near: str, at: str, far: str, there: str) -> None:
    """A cable of two network devices in two name spaces."""
    batch([], [f"link add {near} netns {at} mtu {_MTU} type veth peer name {far} netns {there} mtu {_MTU}"])
