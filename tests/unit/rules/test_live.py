"""What `rules check` makes of what a Prometheus has: whether a selector is empty because nothing is wrong."""

import re

from fabricpulse.core.metrics.common import METRICS_VERSION
from fabricpulse.rules.live import Exporters, Found, selectors_of
from fabricpulse.rules.mixin import compile_mixin

RATE = 'fabricpulse_nic_recent_rate{counter="phy_discards"}'
SILENT = "fabricpulse_plugin_silent_seconds"
LANES = "fabricpulse_lane_state"
FIRING = 'ALERTS{alertname="FabricNicSlow"}'


def found(**exporters: Exporters) -> Found:
    return Found({RATE: 0, SILENT: 0, LANES: 0, FIRING: 0, "up": 4}, [], exporters)


def test_metrics_of_trouble_are_quiet_where_nothing_is_wrong() -> None:
    """Of a daemon all of whose exporters are new enough."""
    both = found(nic=Exporters(3), qp=Exporters(3))
    assert (both.empty(), both.quiet()) == ([LANES], [FIRING, RATE, SILENT])


def test_nics_that_were_never_disconnected_are_no_empty_selector() -> None:
    """What mesh exporters say of disconnected NICs alone, and what they say of each."""
    names = ("fabricpulse_nic_disconnected", "fabricpulse_nic_recent_disconnect_age_seconds")
    of_mesh = Found({**dict.fromkeys(names, 0), "fabricpulse_nic_connected": 0}, [], {"mesh": Exporters(3)})
    assert (of_mesh.empty(), of_mesh.quiet()) == (["fabricpulse_nic_connected"], list(names))


def test_one_exporter_that_is_too_old_makes_it_unknown() -> None:
    """Nobody knows whether something is wrong there; what the other daemons report is known."""
    assert found(nic=Exporters(3, outdated=1), qp=Exporters(3)).empty() == [LANES, RATE]


def test_without_exporters_it_is_empty() -> None:
    """A rate that no exporter gives is not quiet: there is nobody who would report."""
    nobody = found()
    assert (nobody.empty(), nobody.quiet()) == ([LANES, RATE, SILENT], [FIRING])


def test_the_rules_ask_for_the_version_that_exporters_have() -> None:
    """Not for the one before, and for each that follows."""
    mixin = compile_mixin()
    (old,) = [
        rule for group in mixin.alerts for rule in group["rules"] if rule["alert"] == "FabricExporterOld"
    ]
    (enough,) = re.findall(r'metrics_version!~"([^"]+)"', old["expr"])
    wanted = range(METRICS_VERSION, METRICS_VERSION + 120)
    assert [n for n in range(METRICS_VERSION + 120) if re.fullmatch(enough, str(n))] == list(wanted)
    assert not any("metrics_version" in selector for selector in selectors_of(mixin))
