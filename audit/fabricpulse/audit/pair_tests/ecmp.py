"""Which source ports of a way lose datagrams or are late: of several equal paths, one. Pure.

Switches choose among equal paths (ECMP) by a hash of the addresses and ports of a packet. Datagrams of a transfer leave
from several source ports to one port of the receiver, so that each port stays on one path. Where some ports lose and
others lose nothing, one path does. Delay needs no fleet time: both hosts' clocks are the same for all ports, whose
datagrams take turns, so that ports are compared with one another.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from fabricpulse.audit.checks.fleet import path_ecmp
from fabricpulse.audit.evidence import way_of
from fabricpulse.audit.model import Finding, Measurement, clip
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import ends_of, without_culprit
from fabricpulse.audit.pair_tests.transfer_tests import LEAST_LOST, MOST_LOSS, Transferred, on_the_way

# A port is late by so much, seconds, and by so many times what good ports differ.
LATE_S, LATE_SPREAD = 100e-6, 4.0
# Ports that can be compared, and datagrams of a port whose smallest delay says something.
LEAST_PORTS, LEAST_EACH = 4, 30
# By so many standard deviations of chance must ports lose differently: a lossy cable hits some more than others.
DEVIATIONS = 6.0
# Directions of one network that are reported each.
MOST_REPORTED = 8
# Hosts that one finding names.
MOST_SUSPECTS = 60


def evaluate_ports(done: Iterable[Transferred]) -> list[Measurement]:
    """Of each way and kind: the share that is lost on the ports that lose, and by how much, in seconds, the
    latest port is later than others. `ok` is None where ports cannot be compared."""
    by_way: dict[tuple[Nic, Nic], list[Transferred]] = defaultdict(list)
    for one in done:
        if one.result.sent_by_port and one.result.received and one.result.received.by_port:
            by_way[one.way.source, one.way.target].append(one)
    found = []
    for tries in by_way.values():
        way = tries[0].way
        ends = (way.network, *way.source, *way.target)
        for kind, (value, ok, ports) in (("ecmp_loss", _loss(tries)), ("ecmp_delay", _delay(tries))):
            found.append(Measurement(kind, *ends, value, ok, len(tries), detail=_describe(ports)))  # type: ignore[arg-type]
    return sorted(found)


PortResult = tuple[float, bool | None, list[tuple[int, int]]]


def _loss(tries: Sequence[Transferred]) -> PortResult:
    sent: dict[tuple[int, int], int] = defaultdict(int)
    lost: dict[tuple[int, int], int] = defaultdict(int)
    # Tests in which a port lost anything, and those that used it: a burst that was lost once is none of the path's.
    losing: dict[tuple[int, int], int] = defaultdict(int)
    used: dict[tuple[int, int], int] = defaultdict(int)
    for one in tries:
        received = one.result.received
        # What the receiver's socket had no room for is of any port.
        if received is None or received.overflowed:
            continue
        _, _, excused = on_the_way(one)
        got = {count.port: count.datagrams for count in received.by_port}
        for port, number in one.result.sent_by_port.items():
            # So is what the hosts have dropped: each port has the benefit of all of it.
            gone = max(0, number - got.get(port, 0) - excused)
            key = port, one.udp_port
            sent[key] += number
            lost[key] += gone
            used[key] += 1
            losing[key] += gone > 0
    bad = [p for p, n in lost.items() if n >= LEAST_LOST and n > MOST_LOSS * sent[p] and losing[p] == used[p]]
    share = sum(lost[p] for p in bad) / max(1, sum(sent[p] for p in bad))
    differ = 0 in lost.values() and _differ([(sent[p], lost[p]) for p in sent])
    if len(sent) < LEAST_PORTS or (bad and not differ):
        return share, None, []
    return share, not bad, sorted(bad)


def _differ(ports: Sequence[tuple[int, int]]) -> bool:
    """Whether ports of (sent, lost) lose at different rates: Pearson's chi-square against one rate for all, whose
    variance grows where few are lost (Haldane 1937)."""
    total, gone = sum(n for n, _ in ports), sum(k for _, k in ports)
    if not 0 < gone < total:
        return False
    rate = gone / total
    statistic = sum((k - n * rate) ** 2 / (n * rate * (1 - rate)) for n, k in ports if n)
    freedom = len(ports) - 1
    variance = 2 * freedom + sum(1 / (n * rate) for n, _ in ports if n)
    return statistic > freedom + DEVIATIONS * math.sqrt(variance)


def _delay(tries: Sequence[Transferred]) -> PortResult:
    excess: dict[tuple[int, int], float] = {}
    for one in tries:
        delays = {
            count.port: count.delay_ns / 1e9
            for count in (one.result.received.by_port if one.result.received else ())
            if count.delay_ns is not None and count.datagrams >= LEAST_EACH
        }
        if len(delays) < LEAST_PORTS:
            continue
        ordered = sorted(delays.values())
        usual = ordered[len(ordered) // 4]
        allowed = max(LATE_S, LATE_SPREAD * (usual - ordered[0]))
        for port, delay in delays.items():
            late = max(0.0, delay - usual - allowed)
            key = port, one.udp_port
            # Late in each test that used it: a busy host is late once.
            excess[key] = min(excess.get(key, late), late)
    if not excess:
        return 0.0, None, []
    bad = sorted(port for port, late in excess.items() if late > 0)
    return max(excess.values()) + (LATE_S if bad else 0.0), not bad, bad


def _describe(ports: Sequence[tuple[int, int]]) -> str:
    if not ports:
        return ""
    return clip(", ".join(str(port) for port, _ in ports) + f" to {ports[0][1]}")


def ecmp_findings(measured: Iterable[Measurement]) -> list[Finding]:
    """The ways of which some source ports lose or are late, worst first, and how many more there are."""
    by_network: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for m in measured:
        if m.kind in ("ecmp_loss", "ecmp_delay") and m.ok is False:
            by_network[m.kind, m.network].append(m)
    found = []
    for (kind, _), bad in sorted(by_network.items()):
        for m in sorted(bad, key=lambda m: (-m.value, m))[:MOST_REPORTED]:
            value = f"{100 * m.value:.2g} %" if kind == "ecmp_loss" else f"{1e6 * m.value:.0f} µs or more"
            what = "loses" if kind == "ecmp_loss" else "is late by"
            target = f"{m.target_host} {m.target_device}"
            more = f"; {len(bad)} ways of {m.network} in all" if len(bad) > 1 else ""
            source = f"{m.source_host} {m.source_device}"
            text = f"one of several paths from {source} to {target} {what} {value} (UDP source ports {m.detail}{more})"
            evidence = {"target": target, "ports": m.detail, "worst": value, "ways": str(len(bad))}
            of_source = path_ecmp.CHECK.finding(m.source_host, m.source_device, text, evidence)
            found.append(without_culprit(of_source, *ends_of(m), text))
        found += _further(sorted(bad, key=lambda m: (-m.value, m))[MOST_REPORTED:], found)
    return found


def _further(bad: Sequence[Measurement], found: Sequence[Finding]) -> list[Finding]:
    """Of the hosts of ways that are not reported each: they are no better than those that are."""
    named = {host for finding in found for host in finding.suspects}
    worst: dict[str, str] = {}
    for m in bad:
        source, target = ends_of(m)
        for host in (source[0], target[0]):
            worst.setdefault(host, f"{' '.join(source)} > {' '.join(target)}")
    hosts = sorted(worst.keys() - named)
    parts = [hosts[start : start + MOST_SUSPECTS] for start in range(0, len(hosts), MOST_SUSPECTS)]
    return [
        msgspec.structs.replace(
            path_ecmp.CHECK.finding(
                "",
                f"{bad[0].network} {bad[0].kind} {number}",
                f"one of several paths of {bad[0].network} between these hosts and others, too",
                {"hosts": clip(", ".join(part))} | {way_of(host): worst[host] for host in part},
            ),
            suspects=tuple(part),
        )
        for number, part in enumerate(parts, 1)
    ]
