"""Reads what a daemon exposes on `/metrics`.

Only the samples that the demo asks for are parsed: it reads some of these pages ten times a second while everything
else of the fleet runs on the same two cores.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNESCAPE = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass
class Samples:
    """One exposition: name -> samples of (labels, value)."""

    by_name: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def all(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Samples called `name` whose labels include `labels`."""
        for found, value in self.by_name.get(name, ()):
            if all(found.get(key) == wanted for key, wanted in labels.items()):
                yield found, value

    def one(self, name: str, **labels: str) -> float | None:
        """The value of the first such sample, or None."""
        return next((value for _, value in self.all(name, **labels)), None)


def parse_samples(text: str, names: Collection[str]) -> Samples:
    """The samples called one of `names` in an exposition in the text format 0.0.4."""
    samples = Samples()
    for line in text.splitlines():
        name = line[: line.find("{")] if "{" in line else line.partition(" ")[0]
        if name not in names:
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        labels = {
            key: re.sub(r"\\.", lambda m: _UNESCAPE.get(m.group(), m.group()), value)
            for key, value in _LABEL.findall(match.group("labels") or "")
        }
        samples.by_name.setdefault(name, []).append((labels, float(match.group("value"))))
    return samples
