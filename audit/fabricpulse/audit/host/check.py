"""What a check is."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Category, Outcome, Severity

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


@dataclass(frozen=True)
class HostCheck:
    """A check that one host can make alone. run : outcomes of the subjects; may raise nothing but its own faults."""

    check: Check
    run: Callable[[HostReader], Iterable[Outcome]]
