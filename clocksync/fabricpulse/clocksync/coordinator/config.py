"""Configuration of the coordinator; docs/configuration.md is generated from it."""

from typing import Annotated

from msgspec import Meta

from fabricpulse.clocksync.wire.limits import MAX_ROUND_S, DriftPpb, HoldoverDriftPpb
from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import TOKEN_FILE, WRITTEN_FILE, read_file
from fabricpulse.diagnosis.daemon.alerts import FaultAlerting
from fabricpulse.diagnosis.daemon.switch_names import SwitchNaming

_DAY_S = 86_400


class CoordinatorConfig(Section, frozen=True):
    """`fabricpulse clocksync coordinator --config`.

    membership : hosts that belong to the fleet even before their sidecars come (a membership file); others join by
    lease. token_file : file with a bearer token that sidecars must show to report; read again when it changes. It
    guards reports only: passwords and certificates for everything, also scrapes, membership, http_sd, status pages and
    what sidecars report to their neighbours, are the web configuration's (--web.config.file of each daemon). round_s :
    the longest time between two solves, seconds, 2 at most. anchor_wait_s : how long a fleet that has no fleet time yet
    waits for the first of the hosts whose sidecars are configured as anchors; begun without UTC, it would take hours to
    slew there.
    """

    membership: Annotated[str, read_file("fabricpulse.core.fleet.membership:load_membership")] = ""
    # A topology file, which declares the leaf of each NIC: faults are then located to a leaf.
    topology: Annotated[str, read_file("fabricpulse.diagnosis.flows.topology:load_topology")] = ""
    # Names of switches that the topology file does not list.
    switch_names: SwitchNaming = SwitchNaming()
    # How long the least delay of a pair of NICs counts, seconds: the fabric's leaves and pods are inferred from them. A
    # NIC that has moved is reported at its new place within that time. Ten times the exporters' evidence.delays_s.
    delays_keep_s: Annotated[float, Meta(ge=10, le=_DAY_S)] = 600.0
    # Virtual machines may share a machine. With false, each host has one of its own: a few that are near one another
    # are then a leaf, also where all are virtual.
    hosts_share_machines: bool = True
    # File in which it is kept since when what is faulty is so, for the next start; default: fault-times.json in the run
    # directory, which does not outlive a reboot.
    fault_times: Annotated[str, WRITTEN_FILE] = ""
    # FabricFaultLocated is pushed from here, ahead of the rule.
    alerting: FaultAlerting = FaultAlerting()
    token_file: Annotated[str, TOKEN_FILE] = ""
    # Take reports as datagrams too, on the UDP ports of the same numbers as --web.listen-address; they cost far less.
    datagrams: bool = True
    # A host that has not reported for so many seconds has left the fleet.
    lease_s: Annotated[float, Meta(le=_DAY_S)] = 10.0
    round_s: float = 1.0
    anchor_wait_s: Annotated[float, Meta(ge=0, le=_DAY_S)] = 30.0
    # How much the rate of a clock may change between two reports, in parts per 10^9; part of the bound.
    drift_ppb: DriftPpb = 250.0
    # Growth of the error bound for a common drift that no edge shows: of all clocks that follow an anchor whose
    # chronyd may have died, or of a part of the fleet that is cut off. In parts per 10^9; the same as the sidecars'
    # clock.holdover_drift_ppb, the worst clock of the fleet.
    holdover_drift_ppb: HoldoverDriftPpb = 1_000

    def validate(self) -> None:
        if not 0.1 <= self.round_s <= min(self.lease_s / 2, MAX_ROUND_S):
            raise ValueError(
                f"0.1 <= round_s <= lease_s / 2 and round_s <= {MAX_ROUND_S:g} are needed; a host silent for longer "
                "counts as lost"
            )
