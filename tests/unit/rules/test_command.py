"""`fabricpulse rules`: what it writes, checks and refuses."""

import errno
import hashlib
import json
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.fixtures.descriptors import none_left

from fabricpulse.core import files
from fabricpulse.core.errors import UserError
from fabricpulse.rules.command import command
from fabricpulse.rules.files import differences
from fabricpulse.rules.validation import Context, _selector, is_duration


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.stdout


def test_one_file_on_standard_output() -> None:
    """Without --output-dir all rules come as one rule file."""
    groups = yaml.safe_load(invoke("render"))["groups"]

    assert {rule.get("alert") for group in groups for rule in group["rules"]} >= {"FabricNicFlapping"}
    assert {rule.get("record") for group in groups for rule in group["rules"]} >= {
        "network:fabricpulse_nic_connected:ratio"
    }


@pytest.mark.thorough
def test_render_then_check(tmp_path: Path) -> None:
    """What was rendered passes --check; a changed, missing or left-over file does not, and is named."""
    invoke("render", "--output-dir", tmp_path)
    assert invoke("render", "--output-dir", tmp_path, "--check") == ""
    first = (tmp_path / "alerts" / "nic.yaml").read_text().splitlines()[0]
    assert first.startswith("# generated from mixins/")

    (tmp_path / "alerts" / "nic.yaml").write_text("groups: []")
    (tmp_path / "alerts" / "clock.yaml").unlink()
    (tmp_path / "recording" / "old.yaml").write_text((tmp_path / "recording" / "job.yaml").read_text())
    (tmp_path / "alerts" / "own.yaml").write_text("# not ours")
    old, own = (tmp_path / "dashboards" / f"fabricpulse-{name}.json" for name in ("old", "own"))
    # What `rules render` of a former version made of a page, and what somebody has made of one in Grafana.
    now = json.loads((tmp_path / "dashboards" / "fabricpulse-now.json").read_text())
    old.write_text(
        json.dumps(now | {"uid": hashlib.md5(b"fabricpulse-old", usedforsecurity=False).hexdigest()})
    )
    own.write_text(json.dumps(now | {"uid": "e7a1b2", "title": "My page"}))
    with pytest.raises(UserError) as caught:
        invoke("render", "--output-dir", tmp_path, "--check")
    for words in (
        "alerts/nic.yaml differs",
        "alerts/clock.yaml is missing",
        "recording/old.yaml is left over",
        "dashboards/fabricpulse-old.json is left over",
    ):
        assert words in str(caught.value)
    assert "own" not in str(caught.value)

    invoke("render", "--output-dir", tmp_path)
    assert invoke("render", "--output-dir", tmp_path, "--check") == ""
    assert not (tmp_path / "recording" / "old.yaml").exists()
    assert (tmp_path / "alerts" / "own.yaml").read_text() == "# not ours"
    assert (old.exists(), own.exists()) == (False, True)


def test_settings_and_overrides(tmp_path: Path) -> None:
    """--config adds an object to the mixin, --set wins over it; numbers stay numbers, other text is text."""
    overrides = tmp_path / "overrides.jsonnet"
    overrides.write_text("{ _config+:: { flapThreshold: 5, flapWindow: '1m' } }")

    text = invoke("render", "--config", overrides, "--set", "flapWindow=30s")

    ages = "fabricpulse_nic_recent_disconnect_age_seconds"
    assert f"(last_over_time({ages}[30s]) + time() - (timestamp({ages}) or" in text
    assert f" max_over_time(timestamp({ages})[30s:15s])) < 30) >= 5" in text


@pytest.mark.parametrize(("window", "seconds"), [("1m30s", "90"), ("1h1m1s500ms", "3661.5"), ("2h", "7200")])
def test_windows_of_several_units(window: str, seconds: str) -> None:
    """A window that an expression compares with is converted to seconds, whatever its units."""
    text = invoke("render", "--set", f"flapWindow={window}")

    ages = "fabricpulse_nic_recent_disconnect_age_seconds"
    assert f"(last_over_time({ages}[{window}]) + time()" in text
    assert f"(timestamp({ages})[{window}:15s])) < {seconds}) >= 3" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "flapTreshold=3"], "the mixin has no knob 'flapTreshold'; did you mean 'flapThreshold'?"),
        (["--set", "flapThreshold"], "--set flapThreshold: expected KNOB=VALUE"),
        (["--label", "release"], "--label release: expected KEY=VALUE"),
        (["--label", "re lease=a"], "--label re lease=a: no label that Kubernetes takes"),
        (["--namespace", "Net"], "--namespace Net: no name of a namespace: a-z, 0-9 and -, at most 63"),
        (["--format", "grafana"], "--format grafana needs --output-dir: dashboards are a file each"),
        (["--check"], "--check needs --output-dir: the folder to compare with"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    """A knob that does not exist and half an option are refused with a sentence."""
    with pytest.raises(UserError) as caught:
        invoke("render", *arguments)

    assert str(caught.value) == message


def test_broken_overrides(tmp_path: Path) -> None:
    """Jsonnet that does not evaluate is one line with the place."""
    overrides = tmp_path / "broken.jsonnet"
    overrides.write_text("{ _config+:: { flapThreshold: ")

    with pytest.raises(UserError, match=r"does not evaluate: .*broken\.jsonnet:1") as caught:
        invoke("render", "--config", overrides)

    assert "\n" not in str(caught.value)


def test_unwritable_output(tmp_path: Path) -> None:
    """A folder that cannot be written is a sentence."""
    (tmp_path / "file").touch()

    with pytest.raises(UserError, match="cannot write the rules to"):
        invoke("render", "--output-dir", tmp_path / "file" / "below")


def test_what_cannot_be_read_is_neither_missing_nor_as_it_should_be(tmp_path: Path) -> None:
    """With no descriptor left, and of a loop of links; `--check` would send people to render again."""
    invoke("render", "--output-dir", tmp_path)
    content = files_of_folder(tmp_path)
    assert differences(tmp_path, content) == []
    with none_left(), pytest.raises(UserError, match="Too many open files"):
        differences(tmp_path, content)
    nic = tmp_path / "alerts" / "nic.yaml"
    nic.unlink()
    nic.symlink_to("nic.yaml")
    with pytest.raises(UserError, match=r"nic\.yaml"):
        invoke("render", "--output-dir", tmp_path, "--check")


def files_of_folder(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_files_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Prometheus that is reloaded meanwhile reads no part of one; mode and links stay, and so does what is as it
    should be.
    """
    invoke("render", "--output-dir", tmp_path)
    clock, nic, kept = (tmp_path / "alerts" / f"{name}.yaml" for name in ("clock", "nic", "path"))
    text, inode = nic.read_text(), kept.stat().st_ino
    nic.write_text("groups: []")
    nic.chmod(0o640)
    clock.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("")
    clock.symlink_to(tmp_path / "elsewhere")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "nic.yaml")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(files, "write_all", full)
        invoke("render", "--output-dir", tmp_path)
    assert nic.read_text() == "groups: []"
    invoke("render", "--output-dir", tmp_path)
    assert (nic.read_text(), stat.S_IMODE(nic.stat().st_mode)) == (text, 0o640)
    assert clock.is_symlink()
    assert "groups:" in (tmp_path / "elsewhere").read_text()
    assert kept.stat().st_ino == inode


def test_prometheus_rule() -> None:
    """--format prometheusrule is one object with the same groups, and the namespace and labels asked for."""
    options = ("--format", "prometheusrule", "--namespace", "net", "--label", "release=kps")
    rule = yaml.safe_load(invoke("render", *options))

    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["metadata"]["namespace"] == "net"
    assert rule["metadata"]["labels"] == {"app.kubernetes.io/name": "fabricpulse", "release": "kps"}
    assert rule["spec"] == yaml.safe_load(invoke("render"))


@pytest.mark.thorough
def test_config_maps(tmp_path: Path) -> None:
    """--format configmap is one object a dashboard, below the size that the API server takes; on standard output all
    of them, in a folder a file each, beside which rules of another form stay as they are.
    """
    invoke("render", "--output-dir", tmp_path)
    invoke("render", "--format", "configmap", "--output-dir", tmp_path)
    objects = list(yaml.safe_load_all(invoke("render", "--format", "configmap")))
    dashboards = {path.name: json.loads(path.read_text()) for path in (tmp_path / "dashboards").iterdir()}

    found = {name: json.loads(text) for item in objects for name, text in item["data"].items()}
    assert found == dashboards
    assert all(item["metadata"]["labels"]["grafana_dashboard"] == "1" for item in objects)
    assert all(len(text) < 2**20 for item in objects for text in item["data"].values())
    assert len(list((tmp_path / "configmaps").iterdir())) == len(objects)
    assert invoke("render", "--output-dir", tmp_path, "--check") == ""


def test_grafana_files(tmp_path: Path) -> None:
    """--format grafana is the dashboards and a provider that points at them."""
    invoke("render", "--format", "grafana", "--output-dir", tmp_path)

    provider = yaml.safe_load((tmp_path / "provisioning" / "fabricpulse.yaml").read_text())["providers"][0]
    assert len(list(Path(provider["options"]["path"]).glob("fabricpulse-*.json"))) >= 6


def test_knobs() -> None:
    """`rules knobs` lists each knob with its default, as JSON if asked."""
    assert "flapThreshold=3" in invoke("knobs").splitlines()
    assert json.loads(invoke("knobs", "--output", "json"))["flapThreshold"] == 3


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('selector=cluster="gpu-a', "selector: 'cluster=\"gpu-a' is not a list of label matchers"),
        ('selector=a="b"} or m{', "is not a list of label matchers"),
        ('selector=a="b",a="c"', "selector: no series can match: a cannot be 'b' and fit 'c' at once"),
        ('jobSelector=job="x",job!="x"', "jobSelector: no series can match"),
        ('selector=a="b",a=~"c|bb"', "selector: no series can match"),
        ("flapWindow=5min", "flapWindow: '5min' is not a duration"),
        ("flapWindow=300", "flapWindow: 300 is not a duration"),
        ("flapWindow=0s", "flapWindow: '0s' is not a duration"),
        ("flapThreshold=2.5", "flapThreshold: 2.5 is not a whole number above 0"),
        ("flapThreshold=-1", "flapThreshold: -1 is not a whole number above 0"),
        ("flapThreshold=21", "flapThreshold: 21 is more than the 20 times that exporters keep"),
        ("slowFlapWindow=121m", "slowFlapWindow: '121m' is longer than the two hours that exporters keep"),
        ("clockBoundSeconds=wide", "clockBoundSeconds: 'wide' is not a number above 0"),
        ("pathLossRatio=5", "pathLossRatio: 5 is not a share between 0 and 1, such as 0.05 for 5 %"),
        ("sloTarget=99.9", "sloTarget: 99.9 is not a share"),
        ("networkDownShare=1", "networkDownShare: 1 is not a share"),
        ("inBandRatio=0", "inBandRatio: 0 is not a number above 0"),
        ("grafanaURL=grafana.example", "grafanaURL: 'grafana.example' is not a URL"),
        ("dashboardPeriod=30m", "dashboardPeriod: '30m' is not a period of Grafana such as now-30m"),
        ("datasourceFilterRegex=(", "datasourceFilterRegex: '(' is not a regular expression"),
        ('disabledAlerts=["FabricNicFlaping"]', "did you mean 'FabricNicFlapping'?"),
        ('severities={"FabricX": "warning"}', "severities: there is no alert 'FabricX'"),
        ('severities={"FabricNicFlapping": "loud"}', "'loud' is no severity"),
        ('extraLabels={"team": 5}', "the label team needs a text, not 5"),
        ("clusterLabel=a-b", "clusterLabel: 'a-b' is no label name"),
        ("runbookURLPattern=http://x", "needs one %s"),
        ("dashboardTags=one", "is of another kind than the default"),
    ],
)
def test_impossible_values(setting: str, words: str) -> None:
    """A value that Prometheus would refuse, or that would silence an alert unseen, is refused with its knob."""
    with pytest.raises(UserError) as caught:
        invoke("render", "--set", setting)

    assert words in str(caught.value)


def test_a_factor_may_be_a_fraction() -> None:
    """Also where its default happens to be whole: jsonnet gives 3.0 as 3."""
    default = invoke("render")
    for setting in (
        "inBandRatio=2.5",
        "contentionScore=2.5",
        "receiverDropsPerSecond=0.5",
        "pathLossRatio=0.02",
    ):
        assert invoke("render", "--set", setting) != default


def test_values_from_jsonnet_are_checked(tmp_path: Path) -> None:
    """What --config brings is checked as --set is: misspelt knobs, values, and expressions of its own rules."""
    for text, words in (
        ("{ _config+:: { flapTreshold: 5 } }", "did you mean 'flapThreshold'?"),
        ("{ _config+:: { flapWindow: 300 } }", "flapWindow: 300 is not a duration"),
        (
            "{ prometheusAlerts+:: { groups+: [{ name: 'own', rules: [{ alert: 'Own', expr: 'up ==' }] }] } }",
            "Own: up == is not PromQL",
        ),
    ):
        overrides = tmp_path / "overrides.jsonnet"
        overrides.write_text(text)
        with pytest.raises(UserError) as caught:
            invoke("render", "--config", overrides)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "good"),
    [("5m", True), ("1h30m", True), ("500ms", True), ("1d12h", True), ("1y2w3d4h5m6s7ms", True)]
    + [(text, False) for text in ("", "5", "5min", "m", "1m1h", "0s", "1.5m", "-5m", "5m ", "1s1s")],
)
def test_durations(text: str, good: bool) -> None:
    """Durations are those of Prometheus, and longer than nothing."""
    assert is_duration(text) is good


@pytest.mark.thorough
def test_overrides_without_end(tmp_path: Path) -> None:
    """A value that contains itself is a sentence; the command goes on to say it."""
    overrides = tmp_path / "endless.jsonnet"
    overrides.write_text("local a = [a]; { _config+:: { flapThreshold: a } }")

    with pytest.raises(UserError, match="does not evaluate: "):
        invoke("render", "--config", overrides)


def test_selectors_that_fit_together() -> None:
    """Several matchers of a label are no contradiction by themselves."""
    for selector in ('a="b",a=~"b|c",a!="c",a!~"d.*"', 'a=~"b.*",a=~".*c"', 'a="b",b="c"'):
        assert _selector(selector, Context("", ())) is None


def test_a_window_that_holds_no_two_scrapes() -> None:
    """A warning on standard error, not in the rules; a usual one is not."""
    result = CliRunner().invoke(command, ["render", "--set", "rateWindow=1ms", "--set", "flapWindow=90s"])
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: rateWindow: '1ms' holds two samples only where")
    assert result.stderr.count("\n") == 1
    assert "warning" not in result.stdout.partition("\n")[0]
