"""Profile files: values that hosts must have, whatever the rest of the fleet has.

    roles:
      nvidia GPU host:
        kernel: 6.8.0-45-generic
      "nvidia GPU host: rail0":
        mtu: ["9000", "9216"]
    paths: {least_gbps: 90, most_loss: 0.002, most_delay_us: 40}

`fabricpulse audit learn` writes one from a run over a good fleet. The role "*" is for all roles without an entry of
their own.
"""

from pathlib import Path
from typing import Annotated

import yaml
from msgspec import Meta

from fabricpulse.audit.compare.odd_one_out import usual_values
from fabricpulse.audit.host.attributes import BY_NAME
from fabricpulse.audit.model import Run
from fabricpulse.core.config import Section, load_config


class PathLimits(Section, frozen=True):
    """What every path between NICs must keep, whatever the rest of the fleet reaches; without a limit it is compared
    with the others alone.

    least_gbps : bandwidth of a NIC, Gb/s. most_loss : share of datagrams, of
    which three times its inverse must be sent to show it. most_delay_us : one-way delay, microseconds.
    """

    least_gbps: Annotated[float, Meta(gt=0)] | None = None
    most_loss: Annotated[float, Meta(gt=0, lt=1)] | None = None
    most_delay_us: Annotated[float, Meta(gt=0)] | None = None


class Profile(Section, frozen=True):
    """What hosts, NICs and paths must have: the file of `--profile`.

    roles : role -> attribute -> the value that hosts or NICs of the role must have, or a list of those that they may
    have; values are text. Roles and attributes are those that `audit learn` writes; "*" is any role. paths : limits
    that `audit run --transfers` proves.
    """

    roles: dict[str, dict[str, str | list[str]]]
    paths: PathLimits = PathLimits()

    def validate(self) -> None:
        for role, wanted in self.roles.items():
            for attribute, values in wanted.items():
                if not values:
                    raise ValueError(f"{role!r} allows no value of {attribute!r}: give one, or leave it out")
                if attribute not in BY_NAME:
                    raise ValueError(f"{role!r} has an attribute {attribute!r} that is not compared")


def load_profile(path: Path) -> Profile:
    """Raises ConfigError."""
    return load_config(path, Profile)


def learn(run: Run) -> str:
    """The profile file of a run: what most have of each attribute in each role."""
    roles = usual_values({report.host: report.values for report in run.hosts})
    return str(yaml.safe_dump({"roles": dict(roles)}, sort_keys=True, allow_unicode=True, width=110))
