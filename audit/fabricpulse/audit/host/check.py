"""What a check is."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Category, Finding, Outcome, Severity, clip

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Check:
    """What one check is for.

    id : of its module, with hyphens. proves : what is true when it passes. how : what it reads. fix : what to do when
    it fails. severity : error: a job fails or is slow; warning: it may be; info: good to know.
    """

    id: str
    category: Category
    severity: Severity
    title: str
    proves: str
    how: str
    fix: str

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"{self.id}: identifiers of checks are lower case words joined by hyphens")
        for text in (self.proves, self.how, self.fix):
            if not text.endswith("."):
                raise ValueError(f"{self.id}: {text!r} must end with a full stop")

    def finding(
        self,
        host: str,
        subject: str,
        summary: str,
        evidence: Mapping[str, str] | None = None,
        *,
        severity: Severity | None = None,
        category: Category | None = None,
    ) -> Finding:
        """That it has failed, of a host ("" for the whole fleet) and a device of it ("" for the host itself).

        summary : one line for a person. severity, category : where they are not the check's own, as of an attribute
        that has one itself.
        """
        where = host, subject, clip(summary), dict(evidence or {})
        return Finding(self.id, category or self.category, severity or self.severity, *where)


@dataclass(frozen=True)
class HostCheck:
    """A check that one host can make alone. run : outcomes of the subjects; may raise nothing but its own faults."""

    check: Check
    run: Callable[[HostReader], Iterable[Outcome]]
