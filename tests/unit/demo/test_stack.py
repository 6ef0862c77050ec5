"""Which daemons the demo starts."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.lab.demo.stack import Stack, StackOptions

# The daemon of the audit waits for somebody who asks for one, and no scenario does.
NOT_STARTED = {"audit-node"}


class PaperStack(Stack):
    """Starts nothing: what would be started, by node."""

    started: list[tuple[str, Sequence[str | Path]]]

    def _add(self, node: str, name: str, argv: Sequence[str | Path]) -> None:
        self.__dict__.setdefault("started", []).append((node, argv))
        self._daemons[name, node] = cast(Any, SimpleNamespace(name=name, show=lambda port: None))

    def _prometheus(self, node: str) -> None:
        self._add(node, "prometheus", [])

    def _alertmanager(self, node: str) -> None:
        self._add(node, "alertmanager", [])


def test_the_demo_starts_every_daemon(tmp_path: Path) -> None:
    """As its help says: all but the audit's."""
    lab = SimpleNamespace(
        directory=tmp_path,
        mgmt=SimpleNamespace(name="mgmt"),
        fabric=SimpleNamespace(host_names=["h0"], front_end_addresses={"mgmt": "10.9.0.1"}),
        write_membership=lambda leaves: tmp_path / "fleet.yaml",
        address=lambda host, device: "10.9.0.2",
        host=lambda name: SimpleNamespace(directory=tmp_path),
    )
    stack = PaperStack(cast(Any, lab), StackOptions(cast(Any, None)))

    commands = [[str(word) for word in argv] for _, argv in stack.started if argv]
    names = {
        "-".join(words[words.index("fabricpulse.core.cli") + 1 : words.index("--config")])
        for words in commands
    }
    assert names == set(DAEMONS) - NOT_STARTED
