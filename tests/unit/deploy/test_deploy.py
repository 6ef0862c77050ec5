"""What deploy/ offers to copy is true: units, scrape jobs, the route to remediation."""

import re
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fabricpulse.clocksync.coordinator.fleet_api import SD_PORTS
from fabricpulse.core.cli import cli
from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.rules.mixin import compile_mixin, knobs, mixin_dir

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SAMPLES = sorted((DEPLOY / "config").glob("*.yaml"))
PORTS = {"mesh": 9610, "nic": 9611, "qp": 9612, "clocksync": 9613, "coordinator": 9614, "remediation": 9615}


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / ".tools" / "usr" / "bin"))
    if found is None:
        pytest.skip(f"{name} is not installed; scripts/fetch_tools.sh gets it")
    return found


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=60
    )


def test_every_daemon_has_a_unit() -> None:
    """Eight daemons, eight units."""
    assert len(UNITS) == 8


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_unit(path: Path) -> None:
    """A unit starts an existing command of Type=notify, with few rights."""
    text = path.read_text()
    [command] = re.findall(
        r"^ExecStart=/usr/bin/fabricpulse ([a-z ]+) --config /etc/fabricpulse/\S+\.yaml \$OPTIONS$",
        text,
        re.M,
    )

    result = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "--config" in result.output
    # It is started again until it runs, but not with settings that cannot be used.
    restart = (
        "StartLimitIntervalSec=0",
        "Restart=always",
        f"RestartPreventExitStatus={ConfigError.exit_code}",
        "WatchdogSec=60",
        "WatchdogSignal=SIGKILL",
    )
    for setting in ("Type=notify", *restart, "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert f"\n{setting}\n" in text
    for setting in ("CapabilityBoundingSet", "MemoryMax", "LimitNOFILE", "UMask", "SystemCallFilter"):
        assert re.search(rf"^{setting}=", text, re.M), setting
    assert f"\nEnvironmentFile=-/etc/default/{path.stem}\n" in text


def test_each_state_directory_belongs_to_one_unit() -> None:
    """The receiver and the agent run as different users: neither can read or block the other's journal."""
    directories = {}
    for path in UNITS:
        for name in re.findall(r"^StateDirectory=(\S+)$", path.read_text(), re.M):
            directories[path.stem.removeprefix("fabricpulse-")] = name
            assert {"StateDirectoryMode=0700", "UMask=0077"} <= set(path.read_text().splitlines())
    assert directories == {
        "remediation-receiver": "fabricpulse/receiver",
        "remediation-node": "fabricpulse/node",
        "audit-node": "fabricpulse/audit",
        "clocksync-coordinator": "fabricpulse/coordinator",
    }
    for daemon, directory in directories.items():
        settings = yaml.safe_load((DEPLOY / "config" / f"{daemon}.yaml").read_text())
        state = settings.get("journal") or settings.get("state") or settings["fault_times"]
        assert f"{state}/".startswith(f"/var/lib/{directory}/")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_little_exposed(path: Path) -> None:
    """The exposure that systemd computes of a unit's settings, 0 to 10, stays low."""
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("hardware: systemd is not on this machine")
    result = run(systemd, "security", "--offline=true", "--threshold=25", path)
    if "unrecognized option" in result.stderr:
        pytest.skip("systemd is older than 250")
    assert result.returncode == 0, result.stdout.splitlines()[-1:]


def test_the_sidecar_may_ask_the_kernel_how_well_its_clock_is_synchronized() -> None:
    """anchor.kind system reads adjtimex: @system-service would kill it for that, ProtectClock= forbid it."""
    text = (DEPLOY / "systemd" / "fabricpulse-clocksync-sidecar.service").read_text()
    (calls,) = re.findall(r"^SystemCallFilter=(.*)$", text, re.M)
    assert {"@system-service", "adjtimex", "clock_adjtime"} <= set(calls.split())
    assert "ProtectClock=yes" not in text
    assert re.search(r"^CapabilityBoundingSet=$", text, re.M), "reads it, and cannot set it"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_it(path: Path, tmp_path: Path) -> None:
    """systemd knows every setting of the unit."""
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("hardware: systemd is not on this machine")
    unit = tmp_path / path.name
    # The program need not be installed here.
    unit.write_text(
        path.read_text().replace("/usr/bin/fabricpulse", "/bin/true").replace("User=fabricpulse", "User=root")
    )

    result = run(systemd, "verify", "--man=no", unit)

    assert [line for line in result.stderr.splitlines() if path.name in line] == []


def test_clockbound_clients_can_be_served_where_they_look(tmp_path: Path) -> None:
    """With the drop-in the sidecar, which is not root, has the directory; systemd takes no exception to it."""
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("hardware: systemd is not on this machine")
    name = "fabricpulse-clocksync-sidecar.service"
    shutil.copytree(DEPLOY / "systemd" / f"{name}.d", tmp_path / f"{name}.d")
    unit = tmp_path / name
    text = (DEPLOY / "systemd" / name).read_text()
    unit.write_text(text.replace("/usr/bin/fabricpulse", "/bin/true"))

    result = run(systemd, "verify", "--man=no", unit)

    assert [line for line in result.stderr.splitlines() if str(tmp_path) in line or name in line] == []
    drop_in = (DEPLOY / "systemd" / f"{name}.d" / "clockbound.conf").read_text()
    # RuntimeDirectory= belongs to User= and is exempt from ProtectSystem=strict.
    assert {"RuntimeDirectory=clockbound", "RuntimeDirectoryPreserve=yes"} <= set(drop_in.splitlines())


def test_prometheus_configuration() -> None:
    """Prometheus accepts the scrape jobs; their names are those that FabricExporterDown looks for, the ports right."""
    path = DEPLOY / "prometheus.yml"
    result = run(tool("promtool"), "check", "config", "--syntax-only", path)

    assert result.returncode == 0, result.stdout + result.stderr
    pattern = re.match(r'job=~"(.+)"', knobs(mixin_dir())["jobSelector"])
    assert pattern
    for job in yaml.safe_load(path.read_text())["scrape_configs"]:
        assert re.fullmatch(pattern[1], job["job_name"])
        first = job["static_configs"][0]["targets"][0]
        assert first.endswith(f":{PORTS[job['job_name'].removeprefix('fabricpulse-')]}")


def test_every_daemon_is_scraped(tmp_path: Path) -> None:
    """With the job that is offered for audit agents, which are off by default, no daemon's port is left out."""
    text = (DEPLOY / "prometheus.yml").read_text()
    path = tmp_path / "prometheus.yml"
    path.write_text(re.sub(r"^  #(?=(- job_name:|  ))", "  ", text, flags=re.M))
    result = run(tool("promtool"), "check", "config", "--syntax-only", path)

    assert result.returncode == 0, result.stdout + result.stderr
    jobs = yaml.safe_load(path.read_text())["scrape_configs"]
    targets = {target for job in jobs for group in job["static_configs"] for target in group["targets"]}
    assert {int(target.rpartition(":")[2]) for target in targets} == {
        daemon.port for daemon in DAEMONS.values()
    }
    assert all(job["relabel_configs"] == jobs[0]["relabel_configs"] for job in jobs)


def test_http_sd_lists_what_runs_on_a_host() -> None:
    """By the names that people ask for; the sidecar is `clocksync`, and nothing of the monitor is there."""
    assert list(SD_PORTS) == ["mesh", "nic", "qp", "clocksync", "remediation-node", "audit-node"]
    assert SD_PORTS["clocksync"] == DAEMONS["clocksync-sidecar"].port


@pytest.mark.parametrize(
    ("address", "instance"),
    [
        ("gpu-001:9610", "gpu-001"),
        ("gpu-001.example:9610", "gpu-001.example"),
        ("10.0.0.1:9610", "10.0.0.1"),
        ("[fd00::1]:9610", "fd00::1"),
        ("[fd00::1:9610]:9610", "fd00::1:9610"),
    ],
)
def test_instance_is_the_host(address: str, instance: str) -> None:
    """The host of each target, IPv6 addresses whole; Prometheus anchors the pattern at both ends."""
    for job in yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]:
        rule = job["relabel_configs"][0]
        match = re.fullmatch(rule["regex"], address)
        assert match
        assert (match[1], rule["target_label"]) == (instance, "instance")


# Samples of files that no unit names: file -> kind.
SECTIONS = {"fleet": "membership", "topology": "topology", "web": "web-config-file"} | {
    name: name
    for name in ("audit-leaves", "audit-profile", "audit-wiring", "http-client", "placement-places")
}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_configuration(path: Path) -> None:
    """It is accepted as it stands and with all that it offers switched on, and goes where its unit looks."""
    [entry] = entry_points(group="fabricpulse.configs", name=SECTIONS.get(path.stem, path.stem))
    text = path.read_text()
    offered = re.sub(r"^#(?=[a-z_]+\S*:)(?! )", "", re.sub(r"^#(?=  )", "", text, flags=re.M), flags=re.M)
    # Of two values of one setting the last holds: an offered one stands after the default.
    offered = re.sub(r"^( +)(\w+): \S+\n\1\2: ", r"\1\2: ", offered, flags=re.M)

    parse_config(text, entry.load(), path.name)
    if offered != text:
        parse_config(offered, entry.load(), path.name)
        assert yaml.safe_load(offered) != yaml.safe_load(text)
    place = f"/etc/fabricpulse/{path.name}"
    assert text.startswith(f"# {place}, ")
    if path.stem not in SECTIONS:
        unit = DEPLOY / "systemd" / f"fabricpulse-{path.stem}.service"
        assert text.startswith(f"# {place}, for {unit.name}")
        assert f" --config {place} $OPTIONS\n" in unit.read_text()


def test_every_daemon_has_a_sample() -> None:
    """Each unit, and each kind of configuration file, can be started from what is here."""
    samples = {SECTIONS.get(path.stem, path.stem) for path in SAMPLES}
    assert samples == {entry.name for entry in entry_points(group="fabricpulse.configs")}
    assert samples >= {path.stem.removeprefix("fabricpulse-") for path in UNITS}


def test_samples_set_what_silence_would_follow_from() -> None:
    """Membership, key, where alerts go, where the receiver is: without them a daemon runs and nobody hears of it."""
    loaded = {path.stem: yaml.safe_load(path.read_text()) or {} for path in SAMPLES}
    mesh = loaded["mesh"]
    assert mesh["membership"] == {"url": "http://monitor:9614/api/v1/membership"}
    assert mesh["key_file"]
    assert mesh["alerting"]["alertmanagers"]
    assert loaded["remediation-node"]["receiver"] == "http://monitor:9615"
    assert loaded["remediation-node"]["mesh_url"]
    assert loaded["clocksync-sidecar"]["coordinators"]
    assert loaded["clocksync-coordinator"]["membership"] == "/etc/fabricpulse/fleet.yaml"
    assert loaded["remediation-receiver"]["alertmanagers"]
    assert {rule["mode"] for rule in loaded["remediation-receiver"]["rules"]} == {"dry_run"}


def test_pushed_alerts_and_rules_are_one_alert() -> None:
    """The mesh exporter's labels are those that the scrape job sets, or Alertmanager would have two alerts."""
    pushed = yaml.safe_load((DEPLOY / "config" / "mesh.yaml").read_text())["alerting"]["labels"]
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    [job] = [job for job in jobs if job["job_name"] == pushed["job"]]
    set_here = {rule["target_label"]: rule.get("replacement") for rule in job["relabel_configs"]}
    assert set_here == {"instance": None, "cluster": pushed["cluster"]}, (
        "instance: the exporter sets it to its host"
    )


@pytest.mark.parametrize("name", ["on-call", "dead-mans-switch"])
def test_a_receiver_that_notifies_nobody_says_so(name: str) -> None:
    """It notifies nobody until it is filled in: a comment in the file marks the place."""
    text = (DEPLOY / "alertmanager.yml").read_text()
    assert re.search(rf"# TO FILL IN: [^\n]+\n(  # [^\n]+\n)*  - name: {name}\n", text)


def test_grafana_provider() -> None:
    """It names the folder that `rules render --output` of the README fills."""
    [provider] = yaml.safe_load((DEPLOY / "grafana" / "fabricpulse.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/prometheus/fabricpulse/dashboards"
    assert provider["allowUiUpdates"] is False


def test_alertmanager_configuration() -> None:
    """Alertmanager accepts the configuration."""
    result = run(tool("amtool"), "check-config", DEPLOY / "alertmanager.yml")

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("alert", "receivers"),
    [
        ("FabricNicFlapping", "remediation,on-call"),
        ("FabricNicDisconnected", "on-call"),
        ("FabricClockBoundWide", "on-call"),
        ("FabricWatchdog", "dead-mans-switch"),
    ],
)
def test_routes(alert: str, receivers: str) -> None:
    """A flap goes to remediation and to people, everything else to people, the watchdog to its switch."""
    [rule] = [
        rule for group in compile_mixin().alerts for rule in group["rules"] if rule.get("alert") == alert
    ]
    labels = {"alertname": alert, "instance": "gpu-001", "device": "eth1", **rule["labels"]}

    result = run(
        tool("amtool"),
        "config",
        "routes",
        "test",
        f"--config.file={DEPLOY / 'alertmanager.yml'}",
        f"--verify.receivers={receivers}",
        *(f"{key}={value}" for key, value in labels.items()),
    )

    assert result.returncode == 0, result.stdout + result.stderr
