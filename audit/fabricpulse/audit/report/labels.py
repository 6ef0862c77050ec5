"""A run as labels of Kubernetes nodes: `fabricpulse.io/audit` is passed, failed or unknown. Pure.

Labels are what schedulers select by, so that a value is one word; why it is so stands in annotations
(https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/).
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fabricpulse.audit.model import Finding, Run, clip

LABEL, RUN, REASON = "fabricpulse.io/audit", "fabricpulse.io/audit-run", "fabricpulse.io/audit-reason"
# Findings that say that something was not tested, not that it is bad.
NOT_KNOWN = (
    "host-silent",
    "path-untested",
    "nccl-untested",
    "wiring-unknown",
    "profile-unproven",
    "value-missing",
)


@dataclass(frozen=True)
class NodeLabel:
    """What a run says of one host. reason : the worst finding, "" for a host that passed."""

    host: str
    state: Literal["passed", "failed", "unknown"]
    reason: str


def node_labels(run: Run) -> list[NodeLabel]:
    """Of all hosts that were asked, in their order. failed : an error was found; else unknown : it did not answer,
    something of it was not tested, it is one of those that may have a fault, or the run was cancelled; passed only what
    neither is."""
    answered = {report.host for report in run.hosts}
    by_host: dict[str, list[Finding]] = {}
    for finding in run.findings:
        for host in finding.suspects or (finding.host,):
            by_host.setdefault(host, []).append(finding)
    found = []
    for host in run.asked:
        own = by_host.get(host, [])
        errors = [f for f in own if f.severity == "error" and f.check not in NOT_KNOWN and not f.suspects]
        doubts = [f for f in own if f.check in NOT_KNOWN or (f.suspects and f.severity == "error")]
        if errors:
            found.append(NodeLabel(host, "failed", _describe(errors)))
        elif doubts or host not in answered:
            found.append(
                NodeLabel(host, "unknown", _describe(doubts) if doubts else "the host did not answer")
            )
        elif run.cancelled:
            found.append(NodeLabel(host, "unknown", "the run was cancelled"))
        else:
            found.append(NodeLabel(host, "passed", ""))
    return found


def kubectl_lines(run: Run, labels: list[NodeLabel]) -> Iterator[str]:
    """Commands for a shell, two a node; what hosts have written is quoted."""
    for one in labels:
        node = shlex.quote(one.host)
        yield f"kubectl label --overwrite node {node} {LABEL}={one.state}"
        reason = shlex.quote(f"{REASON}={one.reason}")
        yield f"kubectl annotate --overwrite node {node} {shlex.quote(f'{RUN}={run.id}')} {reason}"


def _describe(findings: list[Finding]) -> str:
    first = findings[0]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return clip(f"{first.check} {first.subject}".strip() + f": {first.summary}{more}", 200)
