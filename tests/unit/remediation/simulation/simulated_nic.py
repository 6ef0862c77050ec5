"""A NIC of the simulated fleet."""

from tests.unit.remediation.simulation.simulated_policy import LEAF_HOSTS

from fabricpulse.remediation.receiver.payload import Alert


class Nic:
    """One NIC: what is true of it, and what its agent holds."""

    def __init__(self, host: int, rail: int) -> None:
        self.host, self.device = f"h{host}", f"rail{rail}"
        self.key = f"{self.host}/{self.device}"
        self.leaf = f"rail{rail}-leaf{host // LEAF_HOSTS}"
        self.bad_until = 0.0
        # What its processes do; what its agent was ordered last, and by which operation.
        self.avoided = self.wanted_out = False
        self.generation = 0
        self.op_id = ""
        self.failed = False
        # Of the alert that fires about it, at its Prometheus; 0 for none.
        self.fires_since = 0.0
        # When the receiver got the alert.
        self.reported_at = -1e9
        # Seconds seen healthy since it was last seen otherwise, or fired; the last of them without a gap.
        self.seen_s = self.without_gap_s = 0.0
        self.seen_at = -1e9

    def alert(self, firing: bool = True) -> Alert:
        labels = {
            "alertname": "FabricNicFlapping", "instance": f"{self.host}:9610", "device": self.device,
            "network": self.device, "leaf": self.leaf,
        }  # fmt: skip
        return Alert(firing, self.key, self.fires_since, labels)
