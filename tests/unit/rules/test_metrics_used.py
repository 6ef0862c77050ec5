"""Every metric is read by a rule, a panel or a runbook, or it is said why it is exported all the same."""

import re

from tests.unit.rules.used_metrics import reasons, unused, without_reason


def test_each_metric_is_used_or_said_why_not() -> None:
    """A metric that nothing reads fits one key of rules/unused_metrics.yaml, and each key fits one at least."""
    assert without_reason() == [], (
        "no rule, panel or runbook reads it: say in rules/unused_metrics.yaml why it is exported"
    )
    assert [key for key in reasons() if not any(re.fullmatch(key, name) for name in unused())] == []
    assert all(len(reason.split()) >= 4 for reason in reasons().values())
