"""Configuration of the sidecar and the coordinator; docs/configuration.md is generated from it."""

import socket
from typing import Annotated, Literal

from msgspec import Meta

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.sidecar.fleet_clock import FleetClockParameters
from fabricpulse.core.config import Section
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url

_NS = 1_000_000_000
# Bounds grow with these, as integers of 64 bits in the clock page. No clock of a computer is worse than 1 % off.
DriftPpb = Annotated[float, Meta(gt=0, le=10_000_000)]
HoldoverDriftPpb = Annotated[int, Meta(ge=1, le=10_000_000)]
_DAY_S = 86_400
# Hosts that have been silent for 2.5 s have no say in what the fleet is (Fleet.stale_s), and must not be without a say
# between two of their steps.
MOST_STEP_S = 2.0


class AnchorConfig(Section, frozen=True):
    """What this host's own clock is worth as UTC.

    kind : "none" = no anchor, "reference" = it is UTC within uncertainty_ns, "system" = it follows UTC by chrony, ntpd
    or phc2sys, as exactly as the kernel says (adjtimex maxerror), no better than uncertainty_ns. uncertainty_ns : error
    bound of its UTC, ns.
    """

    kind: Literal["none", "reference", "system"] = "none"
    uncertainty_ns: Annotated[int, Meta(ge=0, le=16 * _NS)] = 0


class EstimatorConfig(Section, frozen=True):
    """The edge estimator: window, and what the bound allows for."""

    # Seconds of probes that one estimate looks at.
    window_s: float = 4.0
    # The same for the first estimate, so that a host is synchronised soon after its start.
    start_window_s: float = 0.5
    # How much longer one direction of a path may be than the other, in ns; part of the error bound.
    asymmetry_ns: Annotated[float, Meta(ge=0, le=_NS)] = 100.0
    # How much the rate of a clock may change while it is measured, in parts per 10^9; part of the bound.
    drift_ppb: DriftPpb = 250.0

    def validate(self) -> None:
        if not 0.1 <= self.start_window_s <= self.window_s <= 60:
            raise ValueError("0.1 <= start_window_s <= window_s <= 60 is needed")

    def parameters(self) -> EstimatorParameters:
        """For the estimator."""
        return EstimatorParameters(asymmetry_ns=self.asymmetry_ns, drift_ppb=self.drift_ppb)


class ClockConfig(Section, frozen=True):
    """Fleet time on this host."""

    # How fast fleet time may catch up with a correction, in parts per 10^6; it never jumps.
    max_slew_ppm: Annotated[float, Meta(ge=1, le=100_000)] = 500.0
    # Without a measurement for this long the clock is in holdover.
    holdover_after_s: Annotated[float, Meta(gt=0, le=3600)] = 4.0
    # Growth of the error bound in holdover, in parts per 10^9: the worst clock of the fleet.
    holdover_drift_ppb: HoldoverDriftPpb = 1_000

    def parameters(self, drift_ppb: float, memory_s: float) -> FleetClockParameters:
        """For the clock. drift_ppb : error of the rate while synchronised. memory_s : what corrections rest on."""
        return FleetClockParameters(
            max_slew_ppm=self.max_slew_ppm,
            drift_ppb=round(drift_ppb),
            holdover_drift_ppb=self.holdover_drift_ppb,
            holdover_after_ns=round(self.holdover_after_s * _NS),
            memory_ns=round(memory_s * _NS),
        )


class OutputsConfig(Section, frozen=True):
    """Who else on this host gets fleet time. The host clock itself is never steered from here.

    clockbound : file of a ClockBound v2 segment; "" = `<run>/clockbound`, "off" = none; clients look at
    /var/run/clockbound/shm0 by default. chrony_sock : socket of chronyd's `refclock SOCK`. ntp_shm_unit : unit of
    chronyd's or ntpd's `refclock SHM`, -1 = none.
    """

    clockbound: str = ""
    chrony_sock: str = ""
    ntp_shm_unit: Annotated[int, Meta(ge=-1, le=255)] = -1


class SidecarConfig(Section, frozen=True):
    """`fabricpulse clocksync sidecar --config`.

    host : this host's name until the mesh exporter has said it, whose name for it counts; default: the system's.
    coordinators : URLs; all get every report, the first of them that places this host is followed. membership :
    membership file, needed only to reach neighbours without a coordinator. advertise_url : where neighbours reach this
    sidecar; default: its own listen address, if that is not a wildcard.
    """

    host: str = ""
    coordinators: tuple[str, ...] = ()
    membership: str = ""
    advertise_url: str = ""
    # Reports go as datagrams where the coordinator offers it and they pass, else by HTTP. Datagrams are authenticated
    # and not encrypted; the key of each sidecar comes with a reply by HTTP.
    datagrams: bool = True
    # Port of the sidecars on the neighbours, for the fallback without a coordinator.
    neighbour_port: Annotated[int, Meta(ge=1, le=65535)] = 9613
    # Seconds between two estimates, 2 at most.
    step_s: float = 1.0
    # The same until the first synchronisation.
    start_step_s: float = 0.25
    clock: ClockConfig = ClockConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    anchor: AnchorConfig = AnchorConfig()
    outputs: OutputsConfig = OutputsConfig()
    http_client: HttpClientConfig = HttpClientConfig()

    def validate(self) -> None:
        if not 0.1 <= self.start_step_s <= self.step_s <= MOST_STEP_S:
            raise ValueError(
                f"0.1 <= start_step_s <= step_s <= {MOST_STEP_S:g} is needed; who is silent longer counts as lost"
            )
        if self.clock.holdover_after_s < 2 * self.step_s:
            raise ValueError(
                f"clock.holdover_after_s ({self.clock.holdover_after_s:g}) must be at least 2 * step_s "
                f"({self.step_s:g}), or every step ends in holdover"
            )
        for url in self.coordinators:
            check_base_url("coordinator", url)
        if self.advertise_url:
            check_base_url("advertise_url", self.advertise_url)

    def clock_parameters(self) -> FleetClockParameters:
        """For the fleet clock. A correction rests on a window, on the fits of the step before, and is a step old."""
        memory_s = self.estimator.window_s + 2 * self.step_s + 1.0
        return self.clock.parameters(self.estimator.drift_ppb, memory_s)

    def host_name(self) -> str:
        """The configured name, or the system's."""
        return self.host or socket.gethostname()


class CoordinatorConfig(Section, frozen=True):
    """`fabricpulse clocksync coordinator --config`.

    membership : hosts that belong to the fleet even before their sidecars come (a membership file); others
    join by lease. token_file : a bearer token that sidecars must show to report; read again when it changes. It guards
    reports only: passwords and certificates for everything, also scrapes, membership, http_sd, status pages and what
    sidecars tell their neighbours, are the web configuration's (--web.config.file of each daemon). step_s : the
    longest time between two solves, 2 at most. anchor_wait_s : how long a fleet that has no fleet time yet waits for
    the first of the hosts whose sidecars are configured as anchors; begun without UTC, it would take hours to slew
    there.
    """

    membership: str = ""
    token_file: str = ""
    # Take reports as datagrams too, on the UDP ports of the same numbers as --web.listen-address; they cost far less.
    datagrams: bool = True
    # A host that has not reported for this long has left the fleet.
    lease_s: Annotated[float, Meta(le=_DAY_S)] = 10.0
    step_s: float = 1.0
    anchor_wait_s: Annotated[float, Meta(ge=0, le=_DAY_S)] = 30.0
    # How much the rate of a clock may change between two reports, in parts per 10^9; part of the bound.
    drift_ppb: DriftPpb = 250.0
    # Growth of the error bound of what clocks may do together while nobody sees it: all that follow an anchor whose
    # chronyd may have died, or a part of the fleet that is cut off. In parts per 10^9; the same as the sidecars'
    # clock.holdover_drift_ppb, the worst clock of the fleet.
    holdover_drift_ppb: HoldoverDriftPpb = 1_000

    def validate(self) -> None:
        if not 0.1 <= self.step_s <= min(self.lease_s / 2, MOST_STEP_S):
            raise ValueError(
                f"0.1 <= step_s <= lease_s / 2 and step_s <= {MOST_STEP_S:g} are needed; who is silent longer counts "
                "as lost"
            )
