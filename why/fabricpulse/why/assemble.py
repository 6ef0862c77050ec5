"""From the answers of Prometheus to the facts of a workload. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from fabricpulse.core.web.prometheus import Sample
from fabricpulse.why.assemble_ranks import Answers, collectives_of, integer, ranks_of
from fabricpulse.why.facts import (
    Clock,
    Facts,
    Flow,
    Gpu,
    Host,
    Nic,
    NicId,
    Origin,
    Process,
    Wait,
)

_THROTTLED_BITS = 0b1110_1000
# From which share of lost probes on an edge is dead, or its other end sends none: no loss of the NIC at this end.
_ALL_LOST = 0.98
# Questions whose answers have one value for each NIC.
_OF_NICS = (
    *(
        "connected",
        "disconnects",
        "link_downs",
        "failovers",
        "speed",
        "transmitted",
        "edges",
        "drops",
        "pause_sent",
    ),
    *("pause_received", "pcie_stalled", "pcie_share", "avoided", "nic_slowed", "nic_marked", "nic_resent"),
)
_EXPORTERS = ("mesh", "nic", "qp", "clocksync-sidecar")


@dataclass
class Gathered:
    """now, before : answers by name of query; one that is not in it was not answered."""

    now: dict[str, list[Sample]] = field(default_factory=dict)
    before: dict[str, list[Sample]] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def assemble(workload: str, at_s: float, window_s: float, got: Gathered) -> Facts:
    """Facts of answers. Labels that are missing or absurd cost the sample they belong to."""
    now, before = _finite(got.now), _finite(got.before)
    flows = flows_of(now, before)
    return Facts(
        workload=workload,
        at_s=at_s,
        window_s=window_s,
        hosts=_host_facts(got),
        nics=_nics(now, before, flows),
        flows=flows,
        ranks=ranks_of(now, before),
        collectives=collectives_of(now, before),
        clocks=_clocks(now),
        waits=_waits(now),
        processes=tuple(
            Process(s.labels.get("instance", ""), integer(s.labels.get("rank")), s.value)
            for s in now.get("heartbeat", ())
        ),
        gpus=_gpus(now),
        other_slow_flows=_other_slow_flows(now),
        other_slow_before=frozenset(
            w for s in before.get("other_slow_flows", ()) if (w := s.labels.get("workload"))
        ),
        origins=_origins(now),
        scraped=_by_instance(now.get("scraped", ())),
        started_s=next((s.value for s in now.get("started", ()) if s.value > 0), None),
        workloads=tuple(sorted(w for s in now.get("workloads", ()) if (w := s.labels.get("workload")))),
        unanswered=tuple(f"{name} ({reason})" for name, reason in sorted(got.unanswered.items())),
    )


def _finite(answers: Answers) -> Answers:
    """Without infinite values, but for the error bound of a clock: infinite while fleet time is unknown."""
    return {
        name: samples if name == "clock_bound" else [s for s in samples if math.isfinite(s.value)]
        for name, samples in answers.items()
    }


def hosts_of(got: Gathered) -> set[str]:
    """The hosts on which processes of the workload run, or ran before."""
    return set(_by_instance(got.now.get("processes", ()))) | set(
        _by_instance(got.before.get("processes", ()))
    )


def _host_facts(got: Gathered) -> tuple[Host, ...]:
    now, before = _by_instance(got.now.get("processes", ())), _by_instance(got.before.get("processes", ()))
    exporters: defaultdict[str, set[str]] = defaultdict(set)
    for s in got.now.get("exporters", ()):
        component = s.labels.get("daemon", "")
        exporters[s.labels.get("instance", "")].add(component.removesuffix("-sidecar"))
    hosts = sorted(hosts_of(got))
    if "exporters" not in got.now and exporters_answer(got):
        for host in hosts:
            exporters[host].update(("mesh", "nic", "qp", "clocksync"))
    for host in now:
        exporters[host].add("qp")
    dead = _by_instance(got.now.get("dead", ()))
    return tuple(
        Host(
            host,
            now.get(host, 0.0 if host in before else None),
            before.get(host),
            frozenset(exporters[host]),
            dead.get(host),
        )
        for host in hosts
    )


def exporters_answer(got: Gathered) -> bool:
    """Whether all exporters are known to answer on all hosts."""
    count = {s.labels.get("daemon"): s.value for s in got.now.get("exporters_counted", ())}
    return all(count.get(name) == len(hosts_of(got)) for name in _EXPORTERS)


def _nics(now: Answers, before: Answers, flows: Iterable[Flow]) -> tuple[Nic, ...]:
    values = {name: _by_nic(now.get(name, ())) for name in _OF_NICS}
    speed_before, sent_before = _by_nic(before.get("speed", ())), _by_nic(before.get("transmitted", ()))
    networks = {
        (s.labels.get("instance", ""), s.labels.get("device", "")): s.labels.get("network", "")
        for s in now.get("connected", ())
    }
    loss, lossy = loss_of(now), _lossy_edges(now)
    ids = set(networks) or set(values["speed"])
    # Of a host's NICs those that carry the job, and those of the fabric that the mesh knows.
    ids |= {f.source for f in flows}

    # Once for all NICs: of a large job there are thousands.
    of = {name: known.get for name, known in values.items()}
    found = []
    for nic in sorted(ids):
        connected = of["connected"](nic)
        loss_in, loss_out = loss.get(nic, (None, None))
        found.append(
            Nic(
                NicId(*nic),
                networks.get(nic, ""),
                None if connected is None else connected > 0.5,
                of["disconnects"](nic),
                of["link_downs"](nic),
                of["failovers"](nic),
                of["speed"](nic) or None,
                speed_before.get(nic) or None,
                of["transmitted"](nic),
                sent_before.get(nic),
                loss_in,
                loss_out,
                lossy.get(nic),
                of["edges"](nic),
                of["drops"](nic),
                of["pause_sent"](nic),
                of["pause_received"](nic),
                of["pcie_stalled"](nic),
                of["pcie_share"](nic),
                of["avoided"](nic),
                of["nic_slowed"](nic),
                of["nic_marked"](nic),
                of["nic_resent"](nic),
            )
        )
    return tuple(found)


def loss_of(now: Answers) -> Mapping[tuple[str, str], tuple[float | None, float | None]]:
    """Share of probes lost, in and out."""
    into, out = _by_nic(now.get("loss_in", ())), _by_nic(now.get("loss_out", ()))
    return {
        # A probe that was sent in one scrape interval may be known to be lost in the next.
        nic: (into.get(nic), None if nic not in out else min(out[nic], 1.0))
        for nic in into.keys() | out.keys()
    }


def _lossy_edges(now: Answers) -> Mapping[tuple[str, str], float]:
    """How many edges of a NIC lose packets, without those that are dead or lead to NICs that were gone."""
    gone = set(_by_nic(now.get("gone", ())))
    found: dict[tuple[str, str], float] = {}
    for s in now.get("lossy_edges", ()):
        nic, peer = _pair(s)
        # The edges of a NIC that was gone itself are its own.
        found[nic] = found.get(nic, 0.0) + (nic in gone or (peer not in gone and s.value < _ALL_LOST))
    return found


# Host and device, and those of the peer.
_Ends = tuple[str, str, str, str]


def _ends(s: Sample) -> _Ends:
    get = s.labels.get
    return get("instance", ""), get("device", ""), get("peer", ""), get("peer_device", "")


def _pair(s: Sample) -> tuple[NicId, NicId]:
    ends = _ends(s)
    return NicId(*ends[:2]), NicId(*ends[2:])


def flows_of(now: Answers, before: Answers) -> tuple[Flow, ...]:
    """By source and target."""

    def by(samples: Iterable[Sample]) -> dict[_Ends, float]:
        return {_ends(s): s.value for s in samples}

    def by_receiver(samples: Iterable[Sample]) -> dict[_Ends, float]:
        """Delay is measured where chunks arrive: there the peer is the source."""
        return {(*ends[2:], *ends[:2]): s.value for s in samples for ends in [_ends(s)]}

    sent, sent_before = by(now.get("sent", ())), by(before.get("sent", ()))
    delay, delay_before = by_receiver(now.get("delay", ())), by_receiver(before.get("delay", ()))
    floor, marked, resent = (
        by_receiver(now.get("floor", ())),
        by(now.get("marked", ())),
        by(now.get("retransmits", ())),
    )
    floor_before = by_receiver(before.get("floor", ()))
    # Labels of an edge say peer -> device. The slower direction counts, as one end alone may know it.
    probes: dict[_Ends, float] = {}
    for ends, value in by(now.get("probe_delay", ())).items():
        for key in (ends, (*ends[2:], *ends[:2])):
            probes[key] = max(probes.get(key, value), value)
    return tuple(
        Flow(
            NicId(*ends[:2]),
            NicId(*ends[2:]),
            sent[ends],
            sent_before.get(ends),
            delay.get(ends),
            delay_before.get(ends),
            floor.get(ends),
            probes.get(ends),
            marked.get(ends),
            resent.get(ends),
            floor_before.get(ends),
        )
        # A flow on which nothing is sent now or before is a connection of the other direction.
        for ends in sorted(sent)
        if sent[ends] > 0 or sent_before.get(ends, 0) > 0
    )


def _clocks(now: Answers) -> tuple[Clock, ...]:
    synchronized, bound = (
        _by_instance(now.get("clock_synchronized", ())),
        _by_instance(now.get("clock_bound", ())),
    )
    disruptions, suspect = (
        _by_instance(now.get("clock_disruptions", ())),
        _by_instance(now.get("clock_suspect", ())),
    )
    return tuple(
        Clock(
            host,
            None if host not in synchronized else synchronized[host] > 0.5,
            bound.get(host),
            disruptions.get(host),
            None if host not in suspect else suspect[host] > 0.5,
        )
        for host in sorted(synchronized.keys() | bound.keys() | disruptions.keys())
    )


def _waits(now: Answers) -> tuple[Wait, ...]:
    missing = {
        _request(s): (s.labels.get("channel", ""), round(s.value)) for s in now.get("missing_bytes", ())
    }
    return tuple(
        Wait(
            s.labels.get("instance", ""),
            integer(s.labels.get("rank")),
            s.labels.get("peer", ""),
            integer(s.labels.get("peer_rank")),
            s.labels.get("waits_for", ""),
            s.value,
            *missing.get(_request(s), ("", None)),
        )
        for s in now.get("waiting", ())
    )


def _request(s: Sample) -> tuple[str, ...]:
    return tuple(
        s.labels.get(name, "") for name in ("instance", "rank", "peer", "peer_rank", "waits_for", "uid")
    )


def _gpus(now: Answers) -> tuple[Gpu, ...]:
    def by(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
        return {(s.labels.get("Hostname", ""), s.labels.get("gpu", "")): s.value for s in samples}

    clock, reasons = by(now.get("gpu_clock", ())), by(now.get("gpu_throttled", ()))
    usual = median(clock.values()) if clock else 0.0
    return tuple(
        Gpu(
            host,
            gpu,
            clock[host, gpu] / usual if (host, gpu) in clock and usual > 0 else None,
            bool(int(reasons[host, gpu]) & _THROTTLED_BITS) if (host, gpu) in reasons else None,
        )
        for host, gpu in sorted(clock.keys() | reasons.keys())
    )


def _other_slow_flows(now: Answers) -> dict[str, tuple[Flow, ...]] | None:
    recorded = now.get("recorded")
    if not recorded or "other_slow_flows" not in now:
        return None
    found: defaultdict[str, list[Flow]] = defaultdict(list)
    for s in now["other_slow_flows"]:
        found[s.labels.get("workload", "")].append(Flow(*_pair(s)[::-1]))
    return {workload: tuple(flows) for workload, flows in found.items()}


def _origins(now: Answers) -> tuple[Origin, ...]:
    """The kernel's word where there is one, that of most hosts first."""
    found = [
        Origin(
            s.labels.get("slurm_job", ""),
            s.labels.get("user", ""),
            s.labels.get("account", ""),
            integer(s.labels.get("nodes")),
            s.labels.get("source") == "cgroup",
            int(s.value),
        )
        for s in now.get("origins", ())
    ]
    return tuple(sorted(found, key=lambda o: (not o.proven, -o.hosts, o.slurm_job, o.user, o.account)))


def _by_instance(samples: Iterable[Sample]) -> dict[str, float]:
    return {s.labels.get("instance", ""): s.value for s in samples}


def _by_nic(samples: Iterable[Sample]) -> Mapping[tuple[str, str], float]:
    """By what is equal to a NicId, and cheaper to make."""
    return {
        (s.labels.get("instance", ""), s.labels["device"]): s.value for s in samples if "device" in s.labels
    }
