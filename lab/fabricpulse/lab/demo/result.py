"""The end of the demo: the table that a person reads and the JSON object that a program reads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fabricpulse.lab.demo.scenario_run import MilestoneResult
from fabricpulse.lab.demo.scenarios.base import Check, Judgement, Outcome, Row

_STYLES = {Judgement.KEPT: "green", Judgement.BROKEN: "bold red", Judgement.NOT_JUDGED: "yellow"}


@dataclass(frozen=True)
class Result:
    """What happened. started : monotonic seconds at which the run began."""

    scenario: str
    started: float
    milestones: Sequence[MilestoneResult]
    outcome: Outcome
    checks: Sequence[Check]

    @property
    def success(self) -> bool:
        """True when every milestone was seen and no check is broken. One not judged is printed, and no failure."""
        return all(milestone.seen_at is not None for milestone in self.milestones) and not any(
            check.judgement is Judgement.BROKEN for check in self.checks
        )

    def as_json(self) -> dict[str, Any]:
        """`scenario`, `milestones` (name, seen, t_s), `promises` (checks: kept, broken, not judged) and the figures.

        null where something was not measured.
        """
        return {
            "scenario": self.scenario,
            "milestones": [
                {
                    "name": milestone.milestone.name,
                    "seen": milestone.seen_at is not None,
                    "t_s": _rounded(
                        milestone.seen_at - self.started if milestone.seen_at is not None else None
                    ),
                }
                for milestone in self.milestones
            ],
            "promises": {check.name: check.judgement.value for check in self.checks},
            **{name: _rounded(value) for name, value in asdict(self.outcome).items()},
        }

    def failures(self) -> list[str]:
        """One line for each thing that makes the demo fail."""
        lines = [
            f"not seen: {s.milestone.title} ({s.evidence or 'not reached'})"
            for s in self.milestones
            if s.seen_at is None
        ]
        for check in self.checks:
            if check.value is None:
                lines.append(f"not measured: {check.text}")
            elif check.judgement is Judgement.BROKEN:
                late = f"; host late {_late(check)}" if check.late else ""
                lines.append(f"broken: {_beyond(check)}{late}")
        return lines

    def not_judged(self) -> list[str]:
        """One line for each check that this machine was too late to judge."""
        return [
            f"not judged: {_beyond(check)}, and host late {_late(check)}"
            for check in self.checks
            if check.judgement is Judgement.NOT_JUDGED
        ]

    def table(self) -> RenderableType:
        """The closing table."""
        table = Table(
            title=f"Scenario {self.scenario}", title_justify="left", show_edge=False, pad_edge=False
        )
        table.add_column("what")
        table.add_column("measured", justify="right")
        table.add_column("must", justify="right", style="dim")
        table.add_column("host late", justify="right", style="dim")
        limits = {check.name: check for check in self.checks}
        for name, text, value in self._rows():
            check = limits.get(name)
            must = f"≤ {check.limit:g} {check.unit}".strip() if check else ""
            style = "" if check is None else _STYLES[check.judgement]
            late = _late(check) if check and check.unit else ""
            table.add_row(text, Text(value, style=style), must, late)
        lines: list[RenderableType] = [table]
        lines += [Text(line, style="bold red") for line in self.failures()]
        lines += [Text(line, style="yellow") for line in self.not_judged()]
        if not self.success:
            closing = Text("FAILED", style="bold red")
        elif self.not_judged():
            closing = Text(
                "every milestone was seen; this machine was too late to judge every figure", style="yellow"
            )
        else:
            closing = Text("every milestone was seen", style="bold green")
        return Group(*lines, closing)

    def _rows(self) -> list[Row]:
        seen = sum(milestone.seen_at is not None for milestone in self.milestones)
        return [("", "milestones seen", f"{seen} of {len(self.milestones)}"), *self.outcome.rows()]


def _beyond(check: Check) -> str:
    return f"{check.text} is {check.value:.4g} {check.unit}, more than {check.limit:g} {check.unit}"


def _late(check: Check) -> str:
    """Two digits, never an exponent."""
    digits = 0 if check.late >= 10 else 1 if check.late >= 1 else 2
    return f"{check.late:.{digits}f} {check.unit}"


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value
