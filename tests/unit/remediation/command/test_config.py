"""Bad configuration is one sentence that says what, where, and what to do."""

import pytest
from click.testing import CliRunner

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.remediation.command import command
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.failover.damping import hold_seconds, is_sticky
from fabricpulse.remediation.receiver.rule_config import HoldConfig


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "rules: [{alert: A, mode: sometimes}]",
            "mode 'sometimes' is none of observe, dry_run, approve, auto",
        ),
        ("maintenance: [{reason: upgrade}]", "give begin and end, or days, at and for_s"),
        ("maintenance: [{begin: '2026-11-22', end: '2026-11-21'}]", "end must be after begin"),
        ("maintenance: [{begin: 'soon', end: '2026-11-21'}]", "begin and end must be like"),
        ("maintenance: [{days: [mon], at: '25:00', for_s: 60}]", "at '25:00' is not HH:MM"),
        (
            "maintenance: [{days: [mon], at: '02:00', for_s: 60, begin: '2026-11-22'}]",
            "give begin and end, or",
        ),
        ("rules: [{alert: A}, {alert: A}]", "an alert is listed twice"),
        (
            "rules: [{alert: A, action: nic.reboot}]",
            "test:1: rules[0]: action 'nic.reboot' is none of nic.avoid, nic.restore,",
        ),
        (
            "rules: [{alert: A, action: nic.restore, hold: {initial_s: 5}}]",
            "hold has no meaning for the action nic.restore: it belongs to the rule that takes the NIC out",
        ),
        ("gaurds: {}", "did you mean 'guards'?"),
        ("guards: {cooldown: 3}", "did you mean 'cooldown_s'?"),
        ("guards: {cooldown_s: -1}", "guards.cooldown_s"),
        ("hold: {initial_s: 10, cap_s: 5}", "cap_s must not be below initial_s"),
        (
            "alertmanagers: ['http://u:p@am']\nhttp_client: {token_file: t}",
            "alertmanager has a password in its URL, and http_client has another",
        ),
        ("alertmanagers: [am:9093]", "alertmanager 'am:9093' is not an http or https URL"),
        ("alertmanagers: ['http://[::1:9093']", "invalid IPv6 URL"),
        ("alertmanagers: ['http://am:notaport']", "is not an http or https URL"),
    ],
)
def test_receiver(text, sentence):
    """A guard rail that is misspelt must not be silently absent."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, ReceiverConfig, "test")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("receiver: h:9615", "receiver 'h:9615' is not an http or https URL"),
        ("receiver: http://h:99999", "port out of range"),
        ("http_client: {tls_config: {cert_file: a.pem}}", "cert_file and key_file are needed together"),
        ("scan_interval_s: 0", "scan_interval_s"),
        ("mesh_url: x", "mesh_url 'x' is not an http or https URL"),
        ("mesh_url: http:///metrics", "no host"),
    ],
)
def test_node(text, sentence):
    """The same for the agent."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, NodeConfig, "test")
    assert sentence in str(caught.value)


def test_a_rules_own_hold_counts_for_its_alert():
    """Seconds for one alert, ten minutes for the others."""
    config = parse_config("rules: [{alert: A, hold: {initial_s: 10}}, {alert: B}]", ReceiverConfig, "test")
    assert (config.hold_of("A").initial_s, config.hold_of("B").initial_s) == (10, 600)


def test_hold_doubles_up_to_its_cap_and_forgets():
    """10, 20, 40, 40 minutes; a failover outside the window counts no more; jitter stays in its band."""
    config = HoldConfig(initial_s=600, cap_s=2400, jitter=0, window_s=10_000)
    assert [hold_seconds(config, (0.0,) * n, 0.0, "s") for n in (1, 2, 3, 4)] == [600, 1200, 2400, 2400]
    assert hold_seconds(config, (0.0, 20_000.0), 20_000.0, "s") == 600
    spread = {hold_seconds(HoldConfig(), (0.0,), 0.0, str(i)) for i in range(50)}
    assert len(spread) == 50
    assert all(540 <= hold <= 660 for hold in spread)
    assert hold_seconds(HoldConfig(), (0.0,), 0.0, "a") == hold_seconds(HoldConfig(), (0.0,), 0.0, "a")


def test_sticky():
    """Three within two hours, not three within a day."""
    config = HoldConfig()
    assert is_sticky(config, (0.0, 3000.0, 7000.0), 7000.0)
    assert not is_sticky(config, (0.0, 40_000.0, 80_000.0), 80_000.0)


def test_token_rotates_and_bad_ones_are_refused(tmp_path):
    """Read again when the file changes; an empty file keeps the old token, and at the start it is an error."""
    path = tmp_path / "token"
    with pytest.raises(UserError, match="cannot read token_file"):
        TokenFile(str(path))
    path.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        TokenFile(str(path))
    path.write_text("one\n")
    token = TokenFile(str(path))
    assert token.header == {"Authorization": "Bearer one"}
    path.write_text("second")
    assert token.header == {"Authorization": "Bearer second"}
    path.write_text("")
    assert token.header == {"Authorization": "Bearer second"}
    assert TokenFile("").header == {}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["status", "--url", "http://127.0.0.1:1"], "cannot reach the receiver at http://127.0.0.1:1"),
        (["status", "--url", "nonsense"], "--url 'nonsense' is not an http or https URL"),
        (
            ["status", "--url", "http://127.0.0.1:notaport"],
            "--url 'http://127.0.0.1:notaport' is not an http",
        ),
        (["journal", "--url", "http://127.0.0.1:1"], "start it or give another --url"),
        (["pause", "--reason", "x", "--token-file", "/nonexistent"], "cannot read token_file /nonexistent"),
        (["receiver", "--config", "/nonexistent"], "cannot read configuration /nonexistent"),
    ],
)
def test_command_line(arguments, sentence):
    """People get a sentence, not a traceback; a URL that is none is a wrong option, as docs/command-line.md has it."""
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_code == (1 if any(text.endswith("127.0.0.1:1") for text in arguments) else 2)
    assert sentence in str(result.exception)
