"""What deploy/ offers to copy is true: units, scrape jobs, the route to remediation."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fabricpulse.core.cli import cli
from fabricpulse.core.rules.mixin import compile_mixin, knobs, mixin_dir

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
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
    """Seven daemons, seven units."""
    assert len(UNITS) == 7


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_unit(path: Path) -> None:
    """A unit starts a command that there is, tells systemd when it is ready, and gives it few rights."""
    text = path.read_text()
    [command] = re.findall(
        r"^ExecStart=/usr/bin/fabricpulse ([a-z ]+) --config /etc/fabricpulse/\S+\.yaml$", text, re.M
    )

    result = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "--config" in result.output
    for setting in ("Type=notify", "Restart=always", "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert f"\n{setting}\n" in text
    assert re.search(r"^CapabilityBoundingSet=", text, re.M)


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


def test_alertmanager_configuration() -> None:
    """Alertmanager accepts the configuration."""
    result = run(tool("amtool"), "check-config", DEPLOY / "alertmanager.yml")

    assert result.returncode == 0, result.stdout + result.stderr


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
