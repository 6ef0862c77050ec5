"""The ring workload in a lab, for the tests of the plugin."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fixtures.waiting import wait_for

from fabricpulse.lab import Lab
from fabricpulse.lab.demo.lateness import Lateness, run_queue_waits
from fabricpulse.lab.process import LabProcess
from fabricpulse.plugin_ipc.control import ControlClient

RENDEZVOUS_PORT = 7000
INTERVAL_MS = 50


@dataclass
class Rank:
    """One process of the ring and what it has printed."""

    host: str
    process: LabProcess
    output: Path
    _parsed: int = 0  # bytes
    _entries: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Its JSON lines of one type so far. Each is parsed once: a bench asks hundreds of times while it measures."""
        with self.output.open("rb") as stream:
            stream.seek(self._parsed)
            new = stream.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._parsed += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                entry = json.loads(line)
                self._entries.setdefault(entry["type"], []).append(entry)
        return list(self._entries.get(kind, ()))

    def text(self) -> str:
        """What it said that is not JSON."""
        return "\n".join(line for line in self.output.read_text().splitlines() if not line.startswith("{"))


class Ring:
    """fabricpulse-ring on some hosts of a lab (default: the first ones), one rank a host."""

    def __init__(
        self,
        lab: Lab,
        size: int = 4,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        program: Path | str = "fabricpulse-ring",
        hosts: Sequence[str] | None = None,
        port: int = RENDEZVOUS_PORT,
        start: int | None = None,
    ) -> None:
        self.lab = lab
        self.ranks: list[Rank] = []
        self._size, self._arguments, self.env = size, arguments, dict(env or {})
        self._program, self._hosts, self._port = program, hosts, port
        self.start(size if start is None else start)

    def start(self, until: int | None = None) -> None:
        """Starts the ranks up to this number that do not run yet; all of them by default."""
        hosts, lab = self._hosts, self.lab
        for number in range(len(self.ranks), self._size if until is None else until):
            host = lab.host(hosts[number] if hosts else number)
            output = host.directory / "log" / f"ring-{number}.out"
            with output.open("w") as stream:
                process = host.popen(
                    [
                        *(str(self._program), "--rank", str(number), "--size", str(self._size), "--json"),
                        *("--rendezvous", f"{lab.host(hosts[0] if hosts else 0).front_end}:{self._port}"),
                        *("--interval-ms", str(INTERVAL_MS), *self._arguments),
                    ],
                    env={
                        "FABRICPULSE_NICS": "rail*",
                        "FABRICPULSE_HOST": host.name,
                        "FABRICPULSE_RANK": str(number),
                        **self.env,
                    },
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                )
            self.ranks.append(Rank(host.name, process, output))

    def wait_running(self, timeout_s: float = 30.0) -> None:
        """Until every rank has moved data."""
        self.until(
            lambda: all(sum(e["bytes"] for e in r.lines("interval")) > 0 for r in self.ranks), timeout_s
        )

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> float:
        """Seconds until the condition held; fails with what the ranks said when the patience of `seconds` is over."""
        start = time.monotonic()
        try:
            wait_for(condition, seconds, "what the test waits for")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None
        return time.monotonic() - start

    def said(self) -> str:
        """Everything the ranks wrote that is not JSON."""
        return "\n".join(f"{rank.host}: {rank.text()}" for rank in self.ranks)

    def stop(self, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """Asks all ranks to finish; their summaries. Fails if one does not end well."""
        for rank in self.ranks:
            rank.process.terminate()
        return self.summaries(timeout_s)

    def kill(self) -> None:
        """Ends all ranks, whatever they do."""
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait(60)

    def summaries(self, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """Waits for the end; the summaries. Fails if a rank reports an error or corrupt bytes."""
        found = []
        for rank in self.ranks:
            code = rank.process.wait(timeout_s)
            assert code == 0, self.said()
            (summary,) = rank.lines("summary")
            assert (summary["errors"], summary["corrupt_bytes"]) == (0, 0), self.said()
            found.append(summary)
        return found

    def wait_printed(self, until_s: float) -> None:
        """Until every rank has printed what it moved before that CLOCK_REALTIME."""
        self.until(lambda: min(r.lines("interval")[-1]["real_ns"] for r in self.ranks) > until_s * 1e9)

    @contextmanager
    def lateness(self) -> Iterator[Lateness]:
        """For how long the ranks wait for a core meanwhile, read as often as they print."""
        found, over = Lateness(), threading.Event()

        def read() -> None:
            last = False
            while not last:
                last = over.wait(INTERVAL_MS / 1000)  # and once more at the end
                for rank in self.ranks:
                    waits = run_queue_waits(rank.process.outer_pid)
                    if waits is not None:
                        found.add_waits(rank.host, time.monotonic(), waits)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield found
        finally:
            over.set()
            reader.join()

    def stall_ms(self, since_s: float, until_s: float, lateness: Lateness | None = None) -> float:
        """Longest gap between completed chunks that any rank saw in a span of CLOCK_REALTIME. lateness : of the same
        time, what the machine has added to each gap, and is left out.
        """
        hosts = [rank.host for rank in self.ranks]

        def caused(entry: Mapping[str, Any]) -> float:
            gap_ms, end_s = float(entry["stall_ms"]), entry["mono_ns"] * 1e-9
            if lateness is None:
                return gap_ms
            began_s = end_s - (INTERVAL_MS + gap_ms) / 1000
            return gap_ms - lateness.of_path(hosts, began_s, end_s) * 1000

        return max(
            caused(entry)
            for rank in self.ranks
            for entry in rank.lines("interval")
            if since_s <= entry["real_ns"] / 1e9 <= until_s + 2 * INTERVAL_MS / 1000
        )

    def bandwidth(self, since_s: float, until_s: float) -> float:
        """Mean bus bandwidth of the ranks in a span of CLOCK_REALTIME, bytes per second: of the intervals that lie
        wholly within it."""
        rates = self.rates(since_s, until_s)
        return sum(rates) / len(rates)

    def slowest(self, since_s: float, until_s: float) -> float:
        """The same of the rank that has received least."""
        return min(self.rates(since_s, until_s))

    def rates(self, since_s: float, until_s: float) -> list[float]:
        """Bus bandwidth of each rank, see bandwidth()."""
        rates = []
        for rank in self.ranks:
            entries = [e for e in rank.lines("interval") if since_s <= e["real_ns"] / 1e9 <= until_s]
            took_ns = entries[-1]["mono_ns"] - entries[0]["mono_ns"] if len(entries) > 1 else 0
            rates.append(sum(e["bytes"] for e in entries[1:]) * 1e9 / took_ns if took_ns else 0.0)
        return rates

    def control(self, host: str, **message: Any) -> dict[str, Any]:
        """One request to the plugin on a host."""
        (path,) = (self.lab.host(host).run_dir / "plugin").glob("*.sock")
        with ControlClient(path) as client:
            return client.call(message)

    def events(self, host: str, since: int = 0) -> tuple[list[dict[str, Any]], int]:
        """All events of the plugin on a host from this index on, and the index after the last: an answer has a page of
        them."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.control(host, op="events", since=since)
            found += page["events"]
            if page["next"] <= since:
                return found, since
            since = page["next"]

    def lanes(self, host: str) -> list[dict[str, Any]]:
        """Every lane of every connection of a host."""
        status = self.control(host, op="status")
        return [lane for connection in status["connections"] for lane in connection["lanes"]]

    def states(self, host: str, device: str) -> set[str]:
        """What state the lanes over a host's NIC are in."""
        return {lane["state"] for lane in self.lanes(host) if lane["device"] == device}

    def carries(self, host: str, device: str) -> bool:
        """Whether lanes of a host's NIC are used."""
        return any(
            lane["device"] == device and lane["state"] == "up" and lane["weight"] > 0
            for lane in self.lanes(host)
        )
