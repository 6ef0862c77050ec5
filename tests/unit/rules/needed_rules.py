"""Only the rules that a promtool test asks for.

promtool evaluates every rule of the files that a test loads at each step, which is nearly all of its time. What is left
out changes no answer: a rule reads metrics, records and `ALERTS`, and all that it reads so is kept, in its group and
order.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Rule = dict[str, Any]
# Everything is text: to YAML 1.1 the values `0x40` are a number.
LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def name_of(rule: Rule) -> str:
    """The alert's or the record's name."""
    return str(rule.get("alert") or rule["record"])


def mentioned(expression: str, rules: Mapping[str, Rule]) -> set[str]:
    """The rules whose records or alerts an expression reads."""
    # As a matcher it may be any; as a label to match by, it names none.
    if re.search(r"__name__\s*[=!]", expression):
        return set(rules)
    names = set(re.findall(r"[\w:]+", expression)) & rules.keys()
    for matchers in re.findall(r"\bALERTS(?:_FOR_STATE)?\b(?:\{([^}]*)\})?", expression):
        positive = re.findall(r'alertname(=~?)"([^"]*)"', matchers)
        names |= {
            name
            for name, rule in rules.items()
            if "alert" in rule
            and all(re.fullmatch(text if how == "=~" else re.escape(text), name) for how, text in positive)
        }
    return names


def needed(asked: Iterable[str], rules: Mapping[str, Rule]) -> set[str]:
    """The rules named, what they read, what that reads."""
    found: set[str] = set()
    left = list(asked)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += mentioned(rules[name]["expr"], rules)
    return found


def split(
    path: Path,
    folder: Path,
    more: Callable[[Rule], Iterable[Rule]] = lambda _: (),
    more_groups: Sequence[Rule] = (),
) -> list[Path]:
    """A file for each test of a promtool test file, which loads only the rules that it needs.

    more : of a test, others to run as well; they may read what `more_groups` record. Raises ValueError where a test
    asks for an alert that its file does not load: such a one never fires.
    """
    content = yaml.load(path.read_text(), LOADER)  # noqa: S506 (builds nothing but text)
    groups = [
        group
        for name in content["rule_files"]
        for group in yaml.load((path.parent / name).read_text(), LOADER)["groups"]  # noqa: S506
    ]
    loaded = {group["name"] for group in groups}
    all_groups = groups + [group for group in more_groups if group["name"] not in loaded]
    tests = [(test, groups) for test in content["tests"]]
    tests += [(other, all_groups) for test in content["tests"] for other in more(test)]
    written = []
    for number, (test, groups) in enumerate(tests):
        # What a test gives as its input no rule may record, too.
        given = {re.split(r"[{ ]", each["series"])[0] for each in test.get("input_series", [])}
        known = {name_of(rule): rule for group in groups for rule in group["rules"]}
        rules = {name: rule for name, rule in known.items() if groups is not all_groups or name not in given}
        asked = {case["alertname"] for case in test.get("alert_rule_test", [])}
        if unknown := asked - rules.keys():
            raise ValueError(f"{path.name}: {test['name']}: no rule {', '.join(sorted(unknown))}")
        for case in test.get("promql_expr_test", []):
            asked |= mentioned(case["expr"], rules)
            for sample in case.get("exp_samples", []):
                sample["value"] = float(sample["value"])
        kept = needed(asked, rules)
        own = [
            group | {"rules": [rule for rule in group["rules"] if name_of(rule) in kept]} for group in groups
        ]
        rule_file = folder / f"{path.stem}.{number}.rules.yaml"
        _write(rule_file, {"groups": [group for group in own if group["rules"]]})
        written.append(folder / f"{path.stem}.{number}.yaml")
        _write(written[-1], content | {"rule_files": [rule_file.name], "tests": [test]})
    return written


def _write(path: Path, content: object) -> None:
    path.write_text(yaml.dump(content, Dumper=DUMPER))
