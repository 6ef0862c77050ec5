"""Pure reconciler: (transaction, event, now) -> changes and journal entries in the transaction.

`observed` takes what is reported, `decisions` compares it with the desired state, `results` takes what became of
operations, `operator` what operators order; `rebalancer` moves lanes of jobs, `drains` leaves hosts.
The commit loop reconciles after each
batch of events, before the commit.
"""

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.drains import Drains
from fabricpulse.remediation.receiver.failover.decisions import Decisions
from fabricpulse.remediation.receiver.failover.host_traffic import HostTraffic
from fabricpulse.remediation.receiver.failover.recovery import RecoveryJudge
from fabricpulse.remediation.receiver.failover.results import OperationResults
from fabricpulse.remediation.receiver.observed_state import ObservedState
from fabricpulse.remediation.receiver.operator_commands import OperatorCommands
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneEvidence
from fabricpulse.remediation.receiver.rebalance.lane_places import Leaves
from fabricpulse.remediation.receiver.rebalance.lane_planner import NO_LEAVES
from fabricpulse.remediation.receiver.rebalance.rebalancer import Rebalancer

# Host -> its devices.
Inventory = dict[str, frozenset[str]]


class Reconciler:
    """The parts of the reconciler, of one policy at a time."""

    def __init__(
        self, config: ReceiverConfig, inventory: Inventory | None = None, leaves: Leaves = NO_LEAVES
    ) -> None:
        """inventory : the devices of each host, where a membership file names them. leaves : theirs, where it says."""
        self.evidence = LaneEvidence()
        self.traffic = HostTraffic()
        self.set_policy(config, inventory or {}, leaves)

    def set_policy(self, config: ReceiverConfig, inventory: Inventory, leaves: Leaves = NO_LEAVES) -> None:
        """Follows another configuration from the next event on."""
        self.config = config
        self.inventory = inventory
        self.observed = ObservedState(config, inventory)
        self.traffic.measure_over(config.guards.recovery_window_s)
        self.decisions = Decisions(config, inventory, RecoveryJudge(config, self.traffic))
        self.results = OperationResults(self.decisions)
        self.rebalancer = Rebalancer(config, inventory, self.evidence, leaves)
        self.drains = Drains(config, inventory)
        self.operator = OperatorCommands(self.decisions, self.rebalancer, self.drains)
