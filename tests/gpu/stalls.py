"""Stalls of a job over NCCL's own sockets, of which only the profiler is seen: what its hosts push, and when; and that
they push nothing of a job that is well.

Each rank is a host with a run directory and qp exporters of its own, which push to a stand-in of Alertmanager. Three
pairs of exporters see the same job: `new` as they are, from the start; `known`, to which a job's pauses are known after
KNOWN_S rather than two hours; `restarted`, which begin amid a stall. What they expose each second is kept, so that the
rule can be evaluated over it elsewhere.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.gpu.job import WORLD, Job, eventually
from tests.gpu.session import Session, right

from fabricpulse.core.errors import UserError

KNOWN_S = 15.0
SIZE = 1 << 20
_QP = "from fabricpulse.core.cli import main; main()"
_KNOWN = f"import fabricpulse.qp.unmoved as unmoved; unmoved._NEW_S = {KNOWN_S}; {_QP}"
_KEPT = (
    "fabricpulse_rank_",
    "fabricpulse_plugin_",
    "fabricpulse_request_waiting",
    "fabricpulse_qp_processes",
)


@dataclass
class Alerts:
    """What one pair of exporters has pushed. firing : labels that identify an alert, since when."""

    firing: dict[str, float] = field(default_factory=dict)
    log: list[tuple[float, str, str]] = field(default_factory=list)

    def take(self, alerts: list[dict[str, Any]]) -> None:
        """One push; ends that are in the past are of alerts that are over."""
        now = time.time()
        for alert in alerts:
            labels = alert["labels"]
            key = " ".join(f"{name}={labels[name]}" for name in ("head", "rank", "peer") if name in labels)
            ends = time.mktime(time.strptime(alert["endsAt"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
            if ends > now and key not in self.firing:
                self.firing[key] = now
                self.log.append((now, "fires", key))
            elif ends <= now and key in self.firing:
                del self.firing[key]
                self.log.append((now, "ends", key))


class Alertmanager:
    """Takes what is pushed; the first part of the path says by whom."""

    def __init__(self) -> None:
        self.of: dict[str, Alerts] = {}
        own = self.of

        class Handler(BaseHTTPRequestHandler):
            def _done(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self._done(b'{"cluster": {"status": "ready"}}')

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                own.setdefault(self.path.split("/")[1], Alerts()).take(json.loads(body))
                self._done(b"")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Exporters:
    """The qp exporters of both hosts. name : under which their alerts are kept. known : see above."""

    def __init__(self, raw: Path, job: Job, alertmanager: Alertmanager, name: str, known: bool) -> None:
        self.began = time.time()
        self.alerts = alertmanager.of.setdefault(name, Alerts())
        self._run = [sys.executable, "-c", _KNOWN if known else _QP, "qp"]
        self._processes, self._ports = [], []
        for rank in range(WORLD):
            config = raw / f"{name}{rank}.yaml"
            alerting = {"alertmanagers": [f"{alertmanager.url}/{name}"], "resolve_hold_s": 1.0}
            config.write_text(json.dumps({"host": f"gpu-test-{rank}", "alerting": alerting}))
            port = 19610 + 10 * sum(name.encode()) % 5000 + rank
            self._ports.append(port)
            arguments = ("--config", str(config), "--web.listen-address", f"127.0.0.1:{port}")
            self._processes.append(
                subprocess.Popen(
                    [*self._run, *arguments],
                    env={**os.environ, "FABRICPULSE_RUN_DIR": str(job.run_dirs[rank])},
                    stdout=subprocess.DEVNULL,
                    stderr=(raw / f"{name}{rank}.log").open("w"),
                )
            )
        self._end = threading.Event()
        self._series = (raw / f"{name}.series").open("w")
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        """A line a scrape: time, host, what it exposes of ranks."""
        while not self._end.wait(1.0):
            for rank, port in enumerate(self._ports):
                with suppress(OSError):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as said:
                        text = said.read().decode()
                    lines = [line for line in text.splitlines() if line.startswith(_KEPT)]
                    self._series.write(json.dumps([time.time(), f"gpu-test-{rank}", lines]) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)
        self._series.close()

    def seen(self, state: str) -> int:
        """Scrapes that had ranks in a state, `inside` or `outside`."""
        self._series.flush()
        return Path(self._series.name).read_text().count(f'state=\\"{state}\\"')


def _fires(pair: Exporters, what: str = "", timeout_s: float = 45.0) -> dict[str, Any]:
    """Until they push an alert whose labels have `what`; which, and when."""

    def found() -> bool:
        return any(what in key for key in pair.alerts.firing)

    try:
        eventually("an alert", found, timeout_s)
    except UserError:
        return {"fired": {}}
    return {"fired": dict(pair.alerts.firing)}


def _since(at_s: float, *pairs: Exporters) -> dict[str, list[tuple[float, str, str]]]:
    """What each pair has pushed since a moment, seconds after it."""
    return {
        Path(pair._series.name).stem: [
            (round(t - at_s, 2), what, key) for t, what, key in pair.alerts.log if t >= at_s
        ]
        for pair in pairs
    }


def _quiet(pair: Exporters, timeout_s: float = 20.0) -> None:
    """Until nothing fires any more."""
    eventually("alerts end", lambda: not pair.alerts.firing, timeout_s)


def part_stalls(session: Session) -> dict[str, Any]:
    """Steps of several lengths, of which nothing is pushed; then three stalls."""
    raw = session.raw / "stalls"
    raw.mkdir()
    found: dict[str, Any] = {}
    env = {
        "FABRICPULSE_DETAIL": "1",
        "NCCL_SOCKET_IFNAME": "=" + ",".join(session.rails.devices),
    }
    alertmanager = Alertmanager()
    with ExitStack() as stack:
        stack.callback(alertmanager.close)
        job = stack.enter_context(session.job(plugin=False, apart=True, env=env))
        new = stack.enter_context(Exporters(raw, job, alertmanager, "new", known=False))

        def steps(count: int, *compute_s: float) -> None:
            found.setdefault("steps", []).append(
                job.ask("steps", 90, size=SIZE, count=count, compute_s=compute_s)
            )

        def known(name: str) -> Exporters:
            pair = stack.enter_context(Exporters(raw, job, alertmanager, name, known=True))
            eventually("a scrape", lambda: Path(pair._series.name).stat().st_size > 0 or pair.seen("x"), 20)
            steps(100, 0.05, 0.2)  # rank 0 waits often
            return pair

        job.ready()
        steps(20, 0.1, 0.1)
        steps(2, 20.0, 20.0)
        steps(1, 0.1, 22.0)
        found["well"] = {"pushed": new.alerts.log.copy(), "outside": new.seen("outside")}
        first = known("known1")
        steps(2, 4.0, 4.0)
        found["well_known"] = {"pushed": first.alerts.log.copy(), "outside": first.seen("outside")}

        def stall(name: str, pair: Exporters, end: Callable[[], None], restart: bool = False) -> None:
            at_s = time.time()
            _fires(pair, timeout_s=15)
            again = None
            if restart:
                again = stack.enter_context(Exporters(raw, job, alertmanager, "restarted", known=False))
                _fires(again, timeout_s=50)
                found["restarted_after_s"] = again.began - at_s
            _fires(new)
            ended = time.time()
            end()
            pairs = [new, pair, *([again] if again else [])]
            for one in pairs:
                with suppress(UserError):
                    _quiet(one)
            found[name] = {"ended_after_s": round(ended - at_s, 2), "pushed": _since(at_s, *pairs)}

        job.ask("skip", 20, size=SIZE)  # rank 0 is in an all-reduce, rank 1 is not
        stall("skipped", first, lambda: job.tell(1, json.dumps({"op": "enter", "size": SIZE})), restart=True)
        found["entered"] = job.answer(1, "answer", 20)
        steps(20, 0.05, 0.05)

        second = known("known2")
        job.begin("steps", size=SIZE, count=600, compute_s=[0.01, 0.01])
        time.sleep(1)  # into the steps; nothing says when which one is under way
        job.ranks[1].send_signal(signal.SIGSTOP)
        stall("stopped", second, lambda: job.ranks[1].send_signal(signal.SIGCONT))
        found["stopped_steps"] = job.answers("answer", 120)

        third = known("known3")
        job.begin("steps", size=SIZE, count=600, compute_s=[0.01, 0.01])
        time.sleep(1)  # into the steps; nothing says when which one is under way

        def link(state: str) -> None:
            for device in session.rails.devices:
                session.rails.link(1, device, state)

        link("down")
        try:
            stall("cut", third, lambda: link("up"))
            found["cut_steps"] = job.answers("answer", 90)
        except UserError as error:  # NCCL may give up
            found["cut_steps"] = [{"note": str(error)[:600]}]
    healthy = not found["well"]["pushed"] and not found["well_known"]["pushed"]
    fired = all(found[name]["pushed"]["new"] for name in ("skipped", "stopped", "cut"))
    return {"ok": healthy and fired and right(*found["steps"][0]), **found}


PARTS: dict[str, Callable[[Session], dict[str, Any]]] = {"stalls": part_stalls}
