"""Every series that rules read of a fleet that lives through the trace, one sample a minute, in promtool's notation.

The servers are those that have a fault of the fabric, and some without. What their NIC exporters say is the real
exporter's (hardware.py); of the mesh, the jobs and the clock it is made up here, labelled as those exporters label it.
As those of a fleet of 400 servers do, they tell of single edges while something is wrong with them.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.rules.replay.hardware import RAILS, Server, netdev
from tests.bench.rules.replay.trace import HOST_DOWN, OTHER, Fault

from fabricpulse.core.metrics.common import METRICS_VERSION

# Without a fault in the trace.
_WELL = 5
# Whom each NIC probes on its rail.
_PEERS = 4
_JOBS = ("mesh", "nic", "qp", "clocksync")
# For so long an exporter tells of what has happened, minutes; and the recent disconnects.
_NIC_TELLS_MIN = 17
_MESH_TELLS_MIN = 120
# Its link is up but the fabric is not reached.
_DISCONNECTED = {"link down", "NIC lost"}

Values = list[float | None]


def host_name(server: int) -> str:
    """As its `instance`."""
    return f"server-{server:03d}"


def rail_of(fault: Fault, nth: int) -> int:
    """Of the rails the one whose NIC has the nth fault of a server: the trace does not say."""
    return (fault.server + nth) % RAILS


class History:
    """The fleet's series. read : the names of metrics that rules read. minutes : how long it lasts."""

    def __init__(self, faults: Sequence[Fault], read: frozenset[str]) -> None:
        self._read = read
        self.minutes = max(fault.end_min for fault in faults) + 30
        ill = {fault.server for fault in faults if fault.kind != OTHER}
        well = [number for number in range(1, 401) if number not in ill][-_WELL:]
        self.servers = sorted(ill | set(well))
        self._faults = {
            server: [fault for fault in faults if fault.server == server] for server in self.servers
        }
        self._down = {
            (server, rail): self._spans(server, rail) for server in self.servers for rail in range(RAILS)
        }
        self._down_at = {
            nic: frozenset(minute for start, end in spans for minute in range(start, end))
            for nic, spans in self._down.items()
        }
        self._dead_at = {server: self._minutes_of(server, HOST_DOWN) for server in self.servers}

    def nic_of(self, fault: Fault) -> str:
        """The NIC that has it."""
        own = [one for one in self._faults[fault.server] if one.kind != OTHER]
        return netdev(rail_of(fault, own.index(fault)))

    def series(self) -> Iterator[tuple[str, str]]:
        """Series and values of an `input_series` of promtool, which begin at minute 0."""
        for server in self.servers:
            dead = self._dead_at[server]
            labels = f'cluster="a",instance="{host_name(server)}"'
            for job, lines in (
                ("mesh", self._mesh(server)),
                ("nic", self._nic(server)),
                ("qp", self._qp(server)),
                ("clocksync", self._clock()),
            ):
                own = f'{labels},job="fabricpulse-{job}"'
                build = f'fabricpulse_build_info{{daemon="{job}",version="1",metrics_version="{METRICS_VERSION}"}}'
                lines |= {build: [1.0] * self.minutes}
                for series, values in lines.items():
                    name, _, more = series.partition("{")
                    if name in self._read:
                        more = more.removesuffix("}")
                        said = [None if at in dead else value for at, value in enumerate(values)]
                        yield f"{name}{{{own}{',' * bool(more)}{more}}}", notation(said)
                yield f"up{{{own}}}", notation([float(at not in dead) for at in range(self.minutes)])

    def _minutes_of(self, server: int, kind: str) -> frozenset[int]:
        return frozenset(
            minute
            for fault in self._faults[server]
            if fault.kind == kind
            for minute in range(fault.start_min, fault.end_min)
        )

    def _spans(self, server: int, rail: int) -> list[tuple[int, int]]:
        """When a NIC does not reach the fabric."""
        own = [one for one in self._faults[server] if one.kind != OTHER]
        return [
            (fault.start_min, fault.end_min)
            for nth, fault in enumerate(own)
            if fault.kind == HOST_DOWN or (fault.kind in _DISCONNECTED and rail_of(fault, nth) == rail)
        ]

    def _is_down(self, server: int, rail: int, minute: int) -> bool:
        return minute in self._down_at[server, rail]

    def _nic(self, server: int) -> dict[str, Values]:
        own = [fault for fault in self._faults[server] if fault.kind != OTHER]
        events = {at for fault in own for at in (fault.start_min, fault.end_min)}
        found: dict[str, Values] = {}
        said: Mapping[str, float] = {}
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            exporter = Server(Path(folder))
            for minute in range(self.minutes):
                for nth, fault in enumerate(own):
                    if minute == fault.start_min:
                        exporter.breaks(rail_of(fault, nth), fault.kind, nth + fault.server)
                    if minute == fault.end_min:
                        exporter.repaired(rail_of(fault, nth), fault.kind)
                if minute < 3 or any(0 <= minute - at <= _NIC_TELLS_MIN for at in events):
                    said = exporter.says(minute)
                for series, value in said.items():
                    if series.partition("{")[0] in self._read:
                        found.setdefault(series, [None] * self.minutes)[minute] = value
            exporter.close()
        self._retries(server, found)
        return found

    def _retries(self, server: int, found: dict[str, Values]) -> None:
        """Queue pairs to a NIC that is lost use up their retries, as the exporter of the sender's NIC tells."""
        for rail in range(RAILS):
            nic = f'device="{netdev(rail)}",rdma_device="mlx5_{rail}",port="1",priority="",kind=""'
            series = f'fabricpulse_nic_recent_increase{{{nic},counter="transport_retries_exceeded"}}'
            starts = [start for peer in self._peers(server)[:1] for start, _ in self._down[peer, rail]]
            for minute in (minute for start in starts for minute in range(start, start + 15)):
                found.setdefault(series, [None] * self.minutes)[minute] = 2.0

    def _mesh(self, server: int) -> dict[str, Values]:
        found: dict[str, Values] = {
            "fabricpulse_mesh_member": [1.0] * self.minutes,
            "fabricpulse_front_end_connected": [1.0] * self.minutes,
            "fabricpulse_front_end_disconnects_total": [0.0] * self.minutes,
        }
        for rail in range(RAILS):
            self._mesh_nic(server, rail, found)
        return found

    def _mesh_nic(self, server: int, rail: int, found: dict[str, Values]) -> None:
        nic = f'device="{netdev(rail)}",network="rail{rail}",leaf=""'
        plain = f'device="{netdev(rail)}",network="rail{rail}"'
        down = [self._is_down(server, rail, minute) for minute in range(self.minutes)]
        starts = [start for start, _ in self._down[server, rail]]
        found[f"fabricpulse_nic_connected{{{nic}}}"] = [float(not is_down) for is_down in down]
        found[f"fabricpulse_nic_disconnects_total{{{nic}}}"] = [
            float(sum(start <= minute for start in starts)) for minute in range(self.minutes)
        ]
        for state, is_so in (("up", False), ("down", True)):
            found[f'fabricpulse_nic_state{{{nic},state="{state}"}}'] = [float(each is is_so) for each in down]
        found[f'fabricpulse_nic_state{{{nic},state="unknown"}}'] = [0.0] * self.minutes
        for quantile, delay in (("0.5", 5e-5), ("0.99", 7e-5)):
            series = f'fabricpulse_probe_recent_owd_seconds{{{plain},quantile="{quantile}"}}'
            found[series] = [None if is_down else delay for is_down in down]
        gone = f"fabricpulse_nic_disconnected{{{nic}}}"
        for minute, is_down in enumerate(down):
            lately = sorted(minute - at for at in starts if 0 <= minute - at < _MESH_TELLS_MIN)
            if lately:
                found.setdefault(gone, [None] * self.minutes)[minute] = float(is_down)
            for nth, age in enumerate(lately, 1):
                series = f'fabricpulse_nic_recent_disconnect_age_seconds{{{nic},nth="{nth}"}}'
                found.setdefault(series, [None] * self.minutes)[minute] = 60.0 * age + 1
        lost_edges = [0] * self.minutes
        for peer in self._peers(server):
            self._edge(server, peer, rail, found, lost_edges)
        for state, counts in (
            ("up", [len(self._peers(server)) - lost for lost in lost_edges]),
            ("down", lost_edges),
        ):
            found[f'fabricpulse_nic_edges{{{plain},state="{state}"}}'] = [float(count) for count in counts]

    def _peers(self, server: int) -> list[int]:
        at = self.servers.index(server)
        return [self.servers[(at + step) % len(self.servers)] for step in range(1, _PEERS + 1)]

    def _edge(
        self, server: int, peer: int, rail: int, found: dict[str, Values], lost_edges: list[int]
    ) -> None:
        """From the peer's NIC to this one; known while it is down, and for a while after."""
        edge = f'device="{netdev(rail)}",peer="{host_name(peer)}",peer_device="{netdev(rail)}"'
        lost, tells = 0.0, 0
        for minute in range(self.minutes):
            own = self._is_down(server, rail, minute)
            if own or self._is_down(peer, rail, minute):
                evidence = "own_nic_disconnected" if own else "peer_nic_silent"
                if minute in self._dead_at[peer]:
                    evidence = "peer_host_silent"
                series = f'fabricpulse_edge_evidence{{{edge},evidence="{evidence}"}}'
                found.setdefault(series, [None] * self.minutes)[minute] = 1.0
                lost, tells = lost + 60_000, 5
                lost_edges[minute] += 1
            elif tells:
                tells -= 1
            else:
                continue
            up = float(not own and not self._is_down(peer, rail, minute))
            for name, value in (
                ("up", up),
                ("probes_lost_total", lost),
                ("probes_received_total", 60_000.0 * minute - lost),
                ("latency_elevated", 0.0),
            ):
                found.setdefault(f"fabricpulse_edge_{name}{{{edge}}}", [None] * self.minutes)[minute] = value

    def _qp(self, server: int) -> dict[str, Values]:
        """A job over all servers, which goes on over the other rail, and in which a server that has any other fault has
        no part.
        """
        found: dict[str, Values] = {}
        away = self._minutes_of(server, OTHER)
        for rail in range(RAILS):
            lane = f'workload="42",device="{netdev(rail)}"'
            states = [
                None if minute in away else float(not self._is_down(server, rail, minute))
                for minute in range(self.minutes)
            ]
            found[f"fabricpulse_lane_state{{{lane}}}"] = states
            found[f"fabricpulse_lane_nic_avoided{{{lane}}}"] = [
                None if state is None else 0.0 for state in states
            ]
            for name, is_so in (("up", 1.0), ("down", 0.0)):
                counted = [2.0 if state == is_so else None for state in states]
                found[f'fabricpulse_lanes{{{lane},state="{name}"}}'] = counted
            failovers = 0.0
            series: Values = []
            for minute, state in enumerate(states):
                failovers += minute in {start for start, _ in self._down[server, rail]}
                series.append(None if state is None else 2 * failovers)
            found[f"fabricpulse_lane_failovers_total{{{lane}}}"] = series
        return found

    def _clock(self) -> dict[str, Values]:
        return {
            "fabricpulse_clock_synchronized": [1.0] * self.minutes,
            "fabricpulse_clock_error_bound_seconds": [4e-6] * self.minutes,
            "fabricpulse_clock_coordinator_up": [1.0] * self.minutes,
            "fabricpulse_clock_suspect": [0.0] * self.minutes,
        }


def notation(values: Values) -> str:
    """promtool's, in which a run of equal values, or of equal steps, is one word. A series that ends is stale."""
    words = []
    at = 0
    while at < len(values):
        value, end = values[at], at + 1
        if value is None:
            while end < len(values) and values[end] is None:
                end += 1
            if at:
                words.append("stale")
            if end - at > (at > 0):
                words.append(f"_x{end - at - (at > 0)}")
        else:
            step = 0.0
            if end < len(values) and (following := values[end]) is not None:
                step = following - value
            while end < len(values) and values[end] == value + step * (end - at):
                end += 1
            sign = "-" if step < 0 else "+"
            words.append(
                f"{value:.15g}{sign}{abs(step):.15g}x{end - at - 1}" if end - at > 1 else f"{value:.15g}"
            )
        at = end
    return " ".join(words)


def names_read(expressions: Sequence[str]) -> frozenset[str]:
    """The metrics of exporters in expressions."""
    return frozenset(
        re.findall(r"(?<![a-z0-9_:])fabricpulse_[a-z0-9_]+(?![a-z0-9_:])", "\n".join(expressions))
    )
