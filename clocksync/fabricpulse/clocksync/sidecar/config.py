"""Configuration of the sidecar; docs/configuration.md is generated from it."""

import os
import socket
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from fabricpulse.clocksync.clock.fleet_clock import FleetClockParameters
from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.outputs.config import OutputsConfig
from fabricpulse.clocksync.wire.limits import MAX_ROUND_S, DriftPpb, HoldoverDriftPpb
from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import MARKER_FILE, read_file
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url

_NS = 1_000_000_000


class AnchorConfig(Section, frozen=True):
    """What this host's own clock is worth as UTC.

    kind : "none" = no anchor, "reference" = it is UTC within uncertainty_ns, "system" = it follows UTC by chrony, ntpd
    or phc2sys, as exactly as the kernel says (adjtimex maxerror), no better than uncertainty_ns; "phc" = the clock of a
    NIC or of the hypervisor is UTC, within uncertainty_ns and what a reading of it may be off. uncertainty_ns : error
    bound of this host's UTC, ns. phc : of kind "phc", its device, such as /dev/ptp0. phc_minus_utc_s : how far it is
    ahead of UTC, seconds: 37 where it is kept on TAI, as by ptp4l; 0 where it shows UTC, as clocks of clouds do;
    refused while the kernel, where it knows TAI (adjtimex), is some leap seconds from it. phc_error_file : a file of
    the driver that says how far it is off, ns, as that of AWS's ENA does; added to uncertainty_ns.
    """

    kind: Literal["none", "reference", "system", "phc"] = "none"
    uncertainty_ns: Annotated[int, Meta(ge=0, le=16 * _NS)] = 0
    phc: str = ""
    phc_minus_utc_s: Annotated[int, Meta(ge=-3600, le=3600)] | None = None
    phc_error_file: Annotated[str, MARKER_FILE] = ""

    def validate(self) -> None:
        if self.kind != "phc":
            # Who forgets the kind would have no anchor, and nothing would say so.
            for name in ("phc", "phc_minus_utc_s", "phc_error_file"):
                if getattr(self, name) not in ("", None):
                    raise ValueError(f"{name} is for kind phc; kind is {self.kind}")
            if self.kind == "none" and self.uncertainty_ns:
                raise ValueError("uncertainty_ns is of an anchor, and kind is none")
            if self.kind == "reference" and self.uncertainty_ns == 0:
                raise ValueError("kind reference needs uncertainty_ns: no clock is exactly UTC")
            return
        if not self.phc or self.phc_minus_utc_s is None:
            raise ValueError("kind phc needs phc, a device such as /dev/ptp0, and phc_minus_utc_s")
        if self.uncertainty_ns == 0 and not self.phc_error_file:
            raise ValueError(
                "kind phc needs uncertainty_ns or phc_error_file: a clock does not say how good it is"
            )

    def file_warnings(self, contents: Mapping[str, object]) -> list[str]:
        found = []
        for name, file in (("phc", self.phc), ("phc_error_file", self.phc_error_file)):
            try:
                if file:
                    os.close(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            except OSError as error:
                found.append(
                    f"anchor.{name}: cannot read {file}: {error.strerror}; until it can this host is no anchor"
                )
        return found


class EstimatorConfig(Section, frozen=True):
    """The edge estimator: window, and what the bound allows for."""

    # Seconds of probes that one estimate uses.
    window_s: float = 4.0
    # Seconds of probes that the first estimate uses, so that a host is synchronised soon after its start.
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
    # Without a measurement for so many seconds the clock is in holdover.
    holdover_after_s: Annotated[float, Meta(gt=0, le=3600)] = 4.0
    # Growth of the error bound in holdover, in parts per 10^9: the worst clock of the fleet.
    holdover_drift_ppb: HoldoverDriftPpb = 1_000

    def parameters(self, drift_ppb: float, lookback_s: float) -> FleetClockParameters:
        """For the clock. drift_ppb : error of the rate while synchronised. lookback_s : age of the oldest sample that
        can influence a correction."""
        return FleetClockParameters(
            max_slew_ppm=self.max_slew_ppm,
            drift_ppb=round(drift_ppb),
            holdover_drift_ppb=self.holdover_drift_ppb,
            holdover_after_ns=round(self.holdover_after_s * _NS),
            lookback_ns=round(lookback_s * _NS),
        )


class SidecarConfig(Section, frozen=True):
    """`fabricpulse clocksync sidecar --config`.

    host : this host's name until the mesh exporter has said it, whose name for it counts; default: the system's.
    coordinators : URLs; all get every report, the first of them that places this host is followed. membership :
    membership file, needed only to reach neighbours without a coordinator. advertise_url : where neighbours reach this
    sidecar; default: its own listen address, if that is not a wildcard.
    """

    host: str = ""
    coordinators: tuple[str, ...] = ()
    membership: Annotated[str, read_file("fabricpulse.core.fleet.membership:load_membership")] = ""
    advertise_url: str = ""
    # Reports go as datagrams where the coordinator offers it and they pass, else by HTTP. Datagrams are authenticated
    # and not encrypted; the key of each sidecar comes with a reply by HTTP.
    datagrams: bool = True
    # Port of the sidecars on the neighbours, for the fallback without a coordinator.
    neighbour_port: Annotated[int, Meta(ge=1, le=65535)] = 9613
    # Seconds between two estimates, 2 at most.
    round_s: float = 1.0
    # Seconds between two estimates until the first synchronisation.
    start_round_s: float = 0.25
    clock: ClockConfig = ClockConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    anchor: AnchorConfig = AnchorConfig()
    outputs: OutputsConfig = OutputsConfig()
    http_client: HttpClientConfig = HttpClientConfig()

    def validate(self) -> None:
        if not 0.1 <= self.start_round_s <= self.round_s <= MAX_ROUND_S:
            raise ValueError(
                f"0.1 <= start_round_s <= round_s <= {MAX_ROUND_S:g} is needed; a host silent for longer counts as lost"
            )
        if self.clock.holdover_after_s < 2 * self.round_s:
            raise ValueError(
                f"clock.holdover_after_s ({self.clock.holdover_after_s:g}) must be at least 2 * round_s "
                f"({self.round_s:g}), or every round ends in holdover"
            )
        for url in self.coordinators:
            check_base_url("coordinator", url)
        if self.advertise_url:
            check_base_url("advertise_url", self.advertise_url)

    def clock_parameters(self) -> FleetClockParameters:
        """For the fleet clock. A correction rests on a window, on the fits of the round before, and is a round old."""
        lookback_s = self.estimator.window_s + 2 * self.round_s + 1.0
        return self.clock.parameters(self.estimator.drift_ppb, lookback_s)

    def host_name(self) -> str:
        """The configured name, or the system's."""
        return self.host or socket.gethostname()
