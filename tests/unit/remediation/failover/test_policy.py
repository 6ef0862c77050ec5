"""Reload: all of the new policy or nothing, and the truth about which."""

from pathlib import Path

import pytest
import yaml
from tests.unit.remediation.world import World, alert, config

from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.remediation.receiver.health import problems
from fabricpulse.remediation.receiver.policy import changes, load_policy, reload_policy

RULE = {"alert": "FabricNicFlapping", "mode": "auto"}


def write(path: Path, **settings: object) -> Path:
    path.write_text(yaml.safe_dump({"journal": "/var/lib/x.db", "rules": [RULE]} | settings))
    return path


def test_a_new_policy_has_another_digest_and_names_its_changes(tmp_path):
    """What the journal says of a reload: which settings, from what to what."""
    path = write(tmp_path / "r.yaml")
    old = load_policy(path)
    assert reload_policy(path, old).digest == old.digest
    write(path, rules=[RULE | {"mode": "observe"}], hold={"initial_s": 60})
    new = reload_policy(path, old)
    assert new.digest != old.digest
    found = changes(old.config, new.config)
    assert set(found) == {"rules.FabricNicFlapping", "hold.initial_s"}
    assert found["hold.initial_s"] == "600 -> 60.0"


def test_the_journal_gets_no_password(tmp_path):
    """Whoever may read what a reload has changed, for ever."""
    path = write(tmp_path / "r.yaml", alertmanagers=["http://am:first@a", "http://b"])
    old = load_policy(path)
    write(path, alertmanagers=["http://am:second@a", "http://b"])
    found = changes(old.config, reload_policy(path, old).config)
    assert found == {"alertmanagers": "('http://***@a', 'http://b') -> ('http://***@a', 'http://b')"}


def test_the_membership_file_is_part_of_the_policy(tmp_path):
    """A host that was added counts after a reload, with the configuration as it was."""
    members = tmp_path / "m.yaml"
    hosts = [{"name": "h0", "nics": [{"device": "eth1", "address": "10.0.0.1", "network": "a"}]}]
    members.write_text(yaml.safe_dump({"hosts": hosts}))
    path = write(tmp_path / "r.yaml", membership=str(members))
    old = load_policy(path)
    hosts.append({"name": "h1", "nics": []})
    members.write_text(yaml.safe_dump({"hosts": hosts}))
    new = reload_policy(path, old)
    assert set(new.inventory) == {"h0", "h1"}
    assert new.digest != old.digest


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("rules: [", "not valid YAML"),
        ("gaurds: {}", "did you mean 'guards'?"),
        ("journal: /elsewhere.db", "journal cannot change without a restart; nothing was applied"),
        ("journal: /var/lib/x.db\nmembership: /absent.yaml", "/absent.yaml"),
        ("journal: /var/lib/x.db\ntoken_file: /absent.token", "/absent.token"),
    ],
)
def test_a_file_that_cannot_be_applied_is_refused(tmp_path, content, sentence):
    """The error names what; the old policy is untouched."""
    path = write(tmp_path / "r.yaml")
    old = load_policy(path)
    path.write_text(content)
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        reload_policy(path, old)


def test_without_a_file_there_is_nothing_to_reload(tmp_path):
    """ "Reloaded" would be a lie."""
    with pytest.raises(UserError, match="without --config"):
        reload_policy(None, load_policy(None))


def test_a_policy_counts_from_the_next_cycle_on():
    """Auto to observe: what fires afterwards is written down and not acted on."""
    world = World()
    world.deliver(alert())
    world.settle()
    world.reconciler.set_policy(config("rules: [{alert: FabricNicFlapping, mode: observe}]"), {})
    world.deliver(alert("h1"))
    assert world.pending() == []
    assert world.state.episodes[alert("h1").fingerprint].status == "firing"


def test_problems():
    """Each condition under which remediation does not act has a code; a working one has none."""
    world = World(config("alertmanagers: [http://a]\nrules: [{alert: FabricNicFlapping, mode: auto}]"))
    codes = lambda not_ready="": [p.code for p in problems(world.config, world.state, world.now, not_ready)]  # noqa: E731
    assert codes() == ["alertmanager_lost"]
    world.poll([])
    assert codes() == []
    world.pause("upgrade", "ada")
    assert codes("disk full") == ["not_ready", "paused"]
    world.resume("ada")
    world.now += 60
    assert codes() == ["agents_lost"]
    assert codes() != [p.code for p in problems(World(hosts=0).config, World(hosts=0).state, world.now, "")]
    assert [p.code for p in problems(World().config, World(hosts=0).state, world.now, "")] == ["no_agents"]
