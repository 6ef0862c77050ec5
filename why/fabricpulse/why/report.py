"""An answer with what only the edge knows: queries, links, journal; what `--output json` writes."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fabricpulse.why.catalogue import CAUSES
from fabricpulse.why.infer import Answer, Ranked

SCHEMA = 1
_BEFORE_S, _AFTER_S = 1800, 300
_MOST_FLOWS = 10


@dataclass(frozen=True)
class Done:
    """A line of the remediation journal about a NIC of the job."""

    at_s: float
    subject: str
    text: str


@dataclass(frozen=True)
class Report:
    """queries : text by name. prometheus, grafana : base URLs for links, "" for none. journal : None when nobody was
    asked, or nobody answered. history : of the bandwidth, pace : of collectives a second; one of them at most."""

    answer: Answer
    queries: dict[str, str]
    history: tuple[tuple[float, float], ...] = ()
    prometheus: str = ""
    grafana: str = ""
    journal: tuple[Done, ...] | None = None
    pace: tuple[tuple[float, float], ...] = ()

    @property
    def _shown_s(self) -> float:
        """How much of the time before is shown: the window that was asked about, and what was before it."""
        return max(_BEFORE_S, self.answer.window_s + _AFTER_S)

    def dashboards(self) -> dict[str, str]:
        """Title -> link, with workload and time range set; {} without a Grafana."""
        if not self.grafana:
            return {}
        v = self.answer
        times = {"from": int((v.at_s - self._shown_s) * 1000), "to": int((v.at_s + _AFTER_S) * 1000)}
        found = {}
        for name, title in (("job", "Job"), ("paths", "Paths"), ("nic", "NIC"), ("now", "Now")):
            uid = hashlib.md5(f"fabricpulse-{name}".encode(), usedforsecurity=False).hexdigest()
            found[title] = (
                f"{self.grafana.rstrip('/')}/d/{uid}?{urlencode({**times, 'var-workload': v.workload})}"
            )
        return found

    def query_link(self, name: str) -> str:
        """Where a query is shown as a graph; "" without a Prometheus or such a query."""
        if not self.prometheus or name not in self.queries:
            return ""
        parameters = {
            "g0.tab": 0,
            "g0.range_input": f"{max(3600, self._shown_s):.0f}s",
            "g0.end_input": f"{self.answer.at_s:.0f}",
            "g0.expr": self.queries[name],
        }
        return f"{self.prometheus.rstrip('/')}/graph?{urlencode(parameters, quote_via=quote)}"

    def document(self) -> dict[str, Any]:
        """What `--output json` writes. Fields are added, never renamed, within a `schema`."""
        v = self.answer
        return {
            "schema": SCHEMA,
            "workload": v.workload,
            "at_s": v.at_s,
            "window_s": v.window_s,
            "state": v.state,
            "headline": v.headline,
            "origins": list(v.origins),
            "comparisons": list(v.comparisons),
            "since_s": v.since_s,
            "causes": [self._cause(r) for r in v.causes],
            "missing": {component: list(hosts) for component, hosts in v.missing.items()},
            "unknown": list(v.unknown),
            "flows": [
                {
                    **asdict(s.flow),
                    "source": str(s.flow.source),
                    "target": str(s.flow.target),
                    "siblings": {"kind": s.kind, "count": s.siblings, "sent": s.sent, "delay_s": s.delay_s},
                    "worse": s.worse,
                }
                for s in v.flows[:_MOST_FLOWS]
            ],
            "waits": list(v.waits),
            "dashboards": self.dashboards(),
            "journal": None if self.journal is None else [asdict(done) for done in self.journal],
        }

    def _cause(self, r: Ranked) -> dict[str, Any]:
        f = r.finding
        return {
            "cause": f.cause,
            "title": CAUSES[f.cause].title,
            "network": CAUSES[f.cause].network,
            "where": f.where,
            "confidence": round(f.confidence, 3),
            "evidence": [
                {"text": e.text, "strength": round(e.strength, 3), "query": self.queries.get(e.query, "")}
                for e in f.evidence
            ],
            "do": list(CAUSES[f.cause].do),
            "explains": [{"cause": e.cause, "where": e.where} for e in r.explains],
        }
