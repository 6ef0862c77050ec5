"""What the settings of both daemons refuse: each would break later, silently or with a traceback."""

from pathlib import Path

import pytest

from fabricpulse.clocksync.coordinator.config import CoordinatorConfig
from fabricpulse.clocksync.sidecar.config import AnchorConfig, SidecarConfig
from fabricpulse.core.config import Section, parse_config
from fabricpulse.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("advertise_url: node2:9613", "advertise_url 'node2:9613' is not an http or https URL"),
        ("advertise_url: http://node2:9613?x=1", "must end with its path"),
        ("coordinators: [monitor:9614]", "coordinator 'monitor:9614' is not an http or https URL"),
        ('coordinators: ["http://[::1:9614"]', "invalid IPv6 URL"),
        ("coordinators: [http://monitor:notaport]", "is not an http or https URL"),
        ("neighbour_port: 99999999", "neighbour_port: "),
        ("neighbour_port: 0", "neighbour_port: "),
        ("anchor: {uncertainty_ns: 100000000000000000000}", "anchor.uncertainty_ns: "),
        ("anchor: {uncertainty_ns: -1}", "anchor.uncertainty_ns: "),
        ("anchor: {phc: /dev/ptp0, phc_minus_utc_s: 37}", "anchor: phc is for kind phc; kind is none"),
        (
            "anchor: {kind: system, phc_minus_utc_s: 0}",
            "anchor: phc_minus_utc_s is for kind phc; kind is system",
        ),
        ("anchor: {uncertainty_ns: 100}", "anchor: uncertainty_ns is of an anchor, and kind is none"),
        ("anchor: {kind: reference}", "anchor: kind reference needs uncertainty_ns"),
        ("clock: {holdover_drift_ppb: 1000000000000000000000000000000}", "clock.holdover_drift_ppb: "),
        ("clock: {holdover_drift_ppb: 0}", "clock.holdover_drift_ppb: "),
        ("clock: {holdover_after_s: .inf}", "clock.holdover_after_s: "),
        ("clock: {max_slew_ppm: .nan}", "clock.max_slew_ppm: "),
        ("estimator: {drift_ppb: .inf}", "estimator.drift_ppb: "),
        ("estimator: {drift_ppb: .nan}", "estimator.drift_ppb: "),
        ("estimator: {asymmetry_ns: .inf}", "estimator.asymmetry_ns: "),
        ("estimator: {window_s: .nan}", "estimator.window_s: nan is no number"),
        ("{round_s: 2.1, clock: {holdover_after_s: 9}}", "round_s <= 2 is needed"),
        ("outputs: {ntp_shm_unit: 256}", "outputs.ntp_shm_unit: "),
        ("http_client: {timeout_s: .inf}", "http_client.timeout_s: "),
    ],
)
def test_sidecar(text: str, words: str) -> None:
    """One sentence, with file, line and setting."""
    refused(text, words, SidecarConfig)


def test_a_clock_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    """The sidecar starts without it, and is no anchor: a device may come with its driver."""
    there = tmp_path / "bound"
    there.touch()
    anchor = AnchorConfig(kind="phc", phc=f"{tmp_path}/ptp9", phc_minus_utc_s=37, phc_error_file=str(there))
    assert anchor.file_warnings({}) == [
        f"anchor.phc: cannot read {tmp_path}/ptp9: No such file or directory; until it can this host is no anchor"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("drift_ppb: .inf", "drift_ppb: "),
        ("drift_ppb: 0", "drift_ppb: "),
        ("holdover_drift_ppb: 0", "holdover_drift_ppb: "),
        ("anchor_wait_s: .nan", "anchor_wait_s: "),
        ("anchor_wait_s: -1", "anchor_wait_s: "),
        ("lease_s: .inf", "lease_s: "),
        ("round_s: .nan", "round_s: nan is no number"),
        ("round_s: 2.1", "round_s <= 2 are needed"),
    ],
)
def test_coordinator(text: str, words: str) -> None:
    """The same for the other daemon."""
    refused(text, words, CoordinatorConfig)


def refused(text: str, words: str, kind: type[Section]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, kind, "c.yaml")
    said = str(caught.value)
    assert said.startswith("c.yaml")
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "text",
    [
        'coordinators: ["http://[fd00::1]:9614", "https://monitor", "http://monitor:9614/"]',
        "advertise_url: https://gpu-001.example:9613/clock/",
    ],
)
def test_what_can_be_reached_is_accepted(text: str) -> None:
    """Addresses, names, https on its own port, a path of a proxy."""
    parse_config(text, SidecarConfig, "c.yaml")


def test_a_wrong_kind_of_anchor_names_the_kinds() -> None:
    """What can be set is part of the sentence."""
    kinds = "'none', 'phc', 'reference', 'system'"
    with pytest.raises(ConfigError, match=rf"anchor\.kind: .*'gps'; one of {kinds}"):
        parse_config("anchor: {kind: gps}", SidecarConfig, "sidecar.yaml")
