"""The installable files of fabricpulse, and the target path of each."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.daemons import DAEMONS, HOST, MONITOR

# Beside the files below: folders, to be read where they are.
FOLDERS = {"runbooks": "docs/runbooks", "mixins": "mixins", "rules": "rules"}


@dataclass(frozen=True)
class DataFile:
    """One file.

    name : what it is called on the command line. source : below the data folder. target : where it goes. role : on
    what kind of machine; None: it is to be merged into a file that is there already.
    """

    name: str
    source: str
    target: str
    role: str | None
    about: str


# Files that no daemon reads by default.
_OPTIONAL = {
    "topology.yaml": "the leaf of each NIC",
    "web.yaml": "TLS and passwords of a daemon",
    "http-client.yaml": "TLS and passwords of commands",
    "audit-leaves.yaml": "the leaf of each host, for an audit",
    "audit-profile.yaml": "what an audit holds hosts and NICs to",
    "audit-wiring.yaml": "where cables go, for an audit",
    "placement-places.yaml": "leaves and pods, for placement",
}


def data_folder() -> Path:
    """Where the files are: the checkout that this module stands in, or else what the wheel has brought."""
    checkout = Path(__file__).parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / "deploy" / "systemd").is_dir():
        return checkout
    # Not .joinpath("data", …): the files of a namespace package take one step at a time on Python 3.11.
    return Path(str(files("fabricpulse") / "data"))


def catalogue() -> list[DataFile]:
    """All files, in the order of installation."""
    found = []
    for role in (MONITOR, HOST):
        found += [
            DataFile(
                f"{role}.sysusers",
                "deploy/systemd/fabricpulse.sysusers",
                "/etc/sysusers.d/fabricpulse.conf",
                role,
                "the user of the daemons",
            )
        ]
    found.append(
        DataFile(
            "host.tmpfiles",
            "deploy/systemd/fabricpulse.tmpfiles",
            "/etc/tmpfiles.d/fabricpulse.conf",
            HOST,
            "the run directory",
        )
    )
    for daemon, (role, _) in DAEMONS.items():
        unit, settings = f"fabricpulse-{daemon}.service", f"{daemon}.yaml"
        found += [
            DataFile(unit, f"deploy/systemd/{unit}", f"/etc/systemd/system/{unit}", role, "unit"),
            DataFile(settings, f"deploy/config/{settings}", f"/etc/fabricpulse/{settings}", role, "settings"),
        ]
    drop_in = "fabricpulse-clocksync-sidecar.service.d/clockbound.conf"
    found += [
        DataFile(
            "fleet.yaml", "deploy/config/fleet.yaml", "/etc/fabricpulse/fleet.yaml", MONITOR, "hosts and NICs"
        ),
        DataFile(
            "prometheus.yml", "deploy/prometheus.yml", "/etc/prometheus/prometheus.yml", None, "scrape jobs"
        ),
        DataFile(
            "alertmanager.yml",
            "deploy/alertmanager.yml",
            "/etc/alertmanager/alertmanager.yml",
            None,
            "routes",
        ),
        DataFile(
            "grafana.yaml",
            "deploy/grafana/fabricpulse.yaml",
            "/etc/grafana/provisioning/dashboards/fabricpulse.yaml",
            None,
            "provider of the dashboards",
        ),
        DataFile(
            "clockbound.conf",
            f"deploy/systemd/{drop_in}",
            f"/etc/systemd/system/{drop_in}",
            None,
            "drop-in: fleet time where clients of ClockBound look",
        ),
    ]
    for name, about in _OPTIONAL.items():
        found.append(DataFile(name, f"deploy/config/{name}", f"/etc/fabricpulse/{name}", None, about))
    return found


def find(name: str) -> DataFile:
    """The file of this name. Raises UserError that lists the names."""
    for file in catalogue():
        if file.name == name:
            return file
    raise UserError(f"there is no file {name!r}; `fabricpulse files list` shows them")
