"""What is pushed of suspects: the rule's alert, seconds earlier."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.diagnosis.daemon.alerts import FaultAlerting, FaultPusher, fault_alert
from fabricpulse.diagnosis.search.suspect import Suspect

LINK = Suspect("loss", "link", "leaf1", "spine2", 0.2, 0.99, 7, 0.0, (), "")
LEAF = Suspect(
    "loss", "switch", "leaf1", "", 1.0, 0.99, 700, 0.0, (), "", silent=True, leaf="leaf1", network="n1"
)
CONFIG = FaultAlerting(("http://a:9093",), labels={"cluster": "c"})


def rule():
    """The shipped rule."""
    text = (Path(__file__).parents[3] / "rules" / "alerts" / "fault.yaml").read_text()
    return yaml.safe_load(text)["groups"][0]["rules"][0]


@pytest.mark.parametrize("suspect", [LINK, LEAF])
def test_the_labels_are_those_of_the_rule(suspect: Suspect) -> None:
    """What the rule aggregates by, its own labels, and nothing that is empty: else one fault would be two alerts."""
    content = fault_alert(CONFIG, suspect)
    kept = {"cluster", "what", "kind", "faulty", "peer", "leaf", "network"}
    assert (
        f"max by ({', '.join(['cluster', 'what', 'kind', 'faulty', 'peer', 'leaf', 'network'])})"
        in rule()["expr"]
    )
    own = {**rule()["labels"], "alertname": rule()["alert"]}
    assert own.items() <= content.labels.items()
    assert content.labels.keys() - own.keys() <= kept
    assert all(content.labels.values())
    assert content.annotations["runbook_url"] == rule()["annotations"]["runbook_url"]
    assert content.annotations["summary"] == rule()["annotations"]["summary"]


def pusher() -> FaultPusher:
    """One whose alerts go nowhere: nobody serves."""
    return FaultPusher(CONFIG, lambda: 1.7e9, lambda: 5.0)


def names(made: FaultPusher) -> set[str]:
    """Of what fires."""
    return {alert.content.labels["faulty"] for alert in made.firing().values()}


def test_sure_suspects_of_the_fabric_fire() -> None:
    """As in the rule: switches and links, sure enough; NICs and pairs have alerts of their own."""
    made = pusher()
    nic, unsure = replace(LINK, kind="nic", peer=""), replace(LINK, component="leaf2", confidence=0.89)
    made.follow((LINK, nic, unsure))
    assert names(made) == {"leaf1"}


def test_one_that_was_sure_fires_until_it_is_gone() -> None:
    """Confidence that moves about the limit makes no alert come and go."""
    made = pusher()
    made.follow((LINK,))
    made.follow((replace(LINK, confidence=0.5),))
    assert names(made) == {"leaf1"}
    made.follow(())
    assert names(made) == set()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alertmanagers: [nowhere]", "nowhere"),
        ("labels: {faulty: x}", "faulty"),
        ("{resend_s: 1, resolve_hold_s: 100}", "resolve_hold_s"),
    ],
)
def test_settings_that_cannot_work(text: str, says: str) -> None:
    """Are refused, by name."""
    with pytest.raises(ConfigError, match=says):
        parse_config(text, FaultAlerting, "coordinator.yaml")
