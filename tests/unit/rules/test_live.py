"""What `rules check` makes of what a Prometheus has: whether a selector is empty because nothing is wrong."""

import re
from importlib.metadata import entry_points

from fabricpulse.core.metrics.catalogue import METRICS_GROUP
from fabricpulse.core.metrics.common import BUILD_INFO, METRICS_VERSION
from fabricpulse.rules.absence import counters_of, daemon_of
from fabricpulse.rules.live import Exporters, Found, selectors_of
from fabricpulse.rules.mixin import compile_mixin

RATE = 'fabricpulse_nic_recent_rate{counter="phy_discards"}'
SILENT = "fabricpulse_plugin_silent_seconds"
LANES = "fabricpulse_lane_state"
FIRING = 'ALERTS{alertname="FabricNicSlow"}'
CONNECTED = "fabricpulse_nic_connected"
GID = 'fabricpulse_nic_nccl_gid_info{gid_type!~"|.*[vV]2.*"}'


def found(**exporters: Exporters) -> Found:
    return Found({RATE: 0, SILENT: 0, LANES: 0, FIRING: 0, CONNECTED: 0, "up": 4}, [], exporters)


def test_metrics_of_trouble_are_quiet_where_nothing_is_wrong() -> None:
    """Of a daemon all of whose exporters are new enough. What a mesh exporter always gives is missed."""
    all_three = found(mesh=Exporters(3), nic=Exporters(3), qp=Exporters(3))
    assert (all_three.empty(), all_three.quiet()) == ([CONNECTED], [FIRING, RATE, SILENT])
    assert list(all_three.waiting()) == [LANES]
    assert "a job with the NCCL plugin" in all_three.waiting()[LANES]
    assert all_three.unscraped() == {}


def test_nics_that_were_never_disconnected_are_no_empty_selector() -> None:
    """What mesh exporters say of disconnected NICs alone, and what they say of each."""
    names = ("fabricpulse_nic_disconnected", "fabricpulse_nic_recent_disconnect_age_seconds")
    of_mesh = Found({**dict.fromkeys(names, 0), CONNECTED: 0}, [], {"mesh": Exporters(3)})
    assert (of_mesh.empty(), of_mesh.quiet()) == ([CONNECTED], list(names))


def test_one_exporter_that_is_too_old_makes_it_unknown() -> None:
    """Nobody knows whether something is wrong there; what the other daemons report is known."""
    one_old = found(mesh=Exporters(3), nic=Exporters(3, outdated=1), qp=Exporters(3))
    assert one_old.empty() == [CONNECTED, RATE]


def test_counters_that_no_nic_has_are_not_well() -> None:
    """Of what nobody counts nobody knows whether it has grown."""
    uncounted = Found({RATE: 0, SILENT: 0}, [], {"nic": Exporters(3), "qp": Exporters(3)}, frozenset((RATE,)))
    assert (uncounted.empty(), uncounted.quiet()) == ([], [SILENT])
    assert "nobody knows" in uncounted.waiting()[RATE]
    assert Found({RATE: 0}, [], {}, frozenset((RATE,))).waiting() == {}
    gid = Found({GID: 0}, [], {"nic": Exporters(3)}, frozenset((GID,)))
    assert (gid.quiet(), "RDMA devices" in gid.waiting()[GID]) == ([], True)
    assert Found({GID: 0}, [], {"nic": Exporters(3)}).quiet() == [GID]


def test_each_counter_that_may_have_grown_is_a_metric() -> None:
    """What a selector of grown counters stands for, with the matchers that are of all series."""
    declared = {spec.name for entry in entry_points(group=METRICS_GROUP) for spec in entry.load().METRICS}
    selectors = selectors_of(compile_mixin(settings={"selector": 'cluster="a"'}))
    counters = [counter for selector in selectors for counter in counters_of(selector)]
    assert 'fabricpulse_nic_kernel_messages_total{cluster="a"}' in counters
    assert [counter for counter in counters if counter.removesuffix('{cluster="a"}') not in declared] == []
    assert counters_of(RATE) == ["fabricpulse_nic_phy_discards_total"]
    assert counters_of(GID) == ["fabricpulse_nic_nccl_gid_info"]
    assert counters_of(CONNECTED) == []


def test_without_a_daemon_what_it_gives_is_not_scraped() -> None:
    """A rate that no exporter gives is not quiet, and no lane waits for a job: nobody would report them."""
    nobody = found()
    assert nobody.unscraped() == {"mesh": [CONNECTED], "nic": [RATE], "qp": [LANES, SILENT]}
    assert (nobody.empty(), nobody.quiet(), nobody.waiting()) == ([], [FIRING], {})


def test_where_all_daemons_are_scraped_only_what_they_always_give_is_missed() -> None:
    """Jobs, hardware and settings that a fleet need not have are waited for; what is there amid faults is none."""
    daemons = ("mesh", "nic", "qp", "clocksync-sidecar", "clocksync-coordinator", "remediation-receiver")
    exporters = dict.fromkeys((*daemons, "remediation-node"), Exporters(3))
    missed = Found(dict.fromkeys(selectors_of(compile_mixin()), 0), [], exporters).empty()
    assert {CONNECTED, 'up{job=~"fabricpulse.*"}', "fabricpulse_clocksync_quorum"} <= set(missed)
    need_not_be = r"fabricpulse_(qp|lane|collective|request|nic_pcie|nic_recent_(rate|increase)|edge)"
    assert not [selector for selector in missed if re.match(need_not_be, selector)]


def test_each_metric_is_of_the_daemon_that_declares_it() -> None:
    """What rules read, by the component whose catalogue has it."""
    of_component = {
        "alerting": {"mesh"},
        "clocksync": {"clocksync-sidecar", "clocksync-coordinator"},
        "diagnosis": {"clocksync-coordinator"},
        "exporter": {""},
        "mesh": {"mesh"},
        "nic": {"nic"},
        "qp": {"qp"},
        "remediation": {"remediation-receiver", "remediation-node"},
    }
    declared = {
        spec.name: entry.name for entry in entry_points(group=METRICS_GROUP) for spec in entry.load().METRICS
    }
    for selector in selectors_of(compile_mixin()):
        name = selector.partition("{")[0]
        if name in declared and name != BUILD_INFO.name:
            assert daemon_of(selector) in of_component[declared[name]], selector


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
