"""Reloading the policy: SIGHUP and POST /-/reload apply the configuration file, or say what was refused."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.fleet.membership import load_membership
from fabricpulse.core.web.urls import redact
from fabricpulse.remediation.protocol import Envelope
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.rebalance.lane_places import Leaves
from fabricpulse.remediation.receiver.reconciler import Inventory
from fabricpulse.remediation.receiver.web.auth import Access

# Settings that only a restart changes.
_FIXED = ("journal", "keep_deliveries_bytes", "lease_s", "notify")


@dataclass(frozen=True)
class Policy:
    """A configuration and the files that it names. leaves : of NICs, where the membership file says. digest : of all,
    as the journal has it."""

    config: ReceiverConfig
    inventory: Inventory
    leaves: Leaves
    access: Access
    digest: str
    seal: Callable[[bytes], Envelope]


@dataclass
class ReloadStatus:
    """The last attempt to load the configuration; the first one is the start. at : seconds since 1970."""

    successful: bool
    at: float


def load_policy(path: Path | None) -> Policy:
    """The policy of a configuration file. Raises UserError naming what is wrong with it or with a file it names."""
    return policy_of(load_config(path, ReceiverConfig))


def policy_of(config: ReceiverConfig) -> Policy:
    """The policy of a configuration. Raises UserError naming a file that cannot be used."""
    inventory, leaves = load_inventory(config.membership)
    listed = [sorted((host, sorted(devices)) for host, devices in inventory.items()), sorted(leaves.items())]
    digest = hashlib.sha256(msgspec.json.encode([config, listed])).hexdigest()
    return Policy(config, inventory, leaves, Access(config), digest[:16], _sealer(config.signing_key_file))


def _sealer(key_file: str) -> Callable[[bytes], Envelope]:
    """What puts payloads into envelopes. Raises ConfigError when the key cannot be used."""
    # The library costs 10 MB and 60 ms: only where something is signed.
    if not key_file:
        return lambda payload: Envelope(payload.decode())
    from fabricpulse.remediation.signing import Signer

    return Signer(key_file).sign


def reload_policy(path: Path | None, old: Policy) -> Policy:
    """The policy of the file now. Raises UserError, and then nothing of it may be applied."""
    if path is None:
        raise UserError("the receiver was started without --config: there is no file to read again")
    new = load_policy(path)
    fixed = [name for name in _FIXED if getattr(new.config, name) != getattr(old.config, name)]
    if fixed:
        raise ConfigError(f"{path}: {', '.join(fixed)} cannot change without a restart; nothing was applied")
    return new


def advice(policy: Policy) -> list[str]:
    """What is allowed and hardly meant."""
    config, found = policy.config, []
    rules = [rule for rule in config.rules if rule.action != "notify"]
    acting = [rule.alert for rule in rules if rule.mode in ("approve", "auto")]
    if acting and policy.access.is_open:
        found.append(
            "rules act, and access is not set: alerts are taken from this machine and from alertmanagers only, and "
            "whoever reaches the port may report as an agent"
        )
    shared = [entry.name for entry in config.access if entry.role == "agent" and entry.token_file]
    if acting and shared and not config.agent_certificates:
        found.append(
            f"rules act, and each host's agent can speak for the others with {shared[0]}: use key_file"
        )
    if acting and not config.signing_key_file:
        found.append("rules act, and agents cannot tell this receiver from another: set signing_key_file")
    if acting and not config.alertmanagers:
        found.append(
            "rules act, and no Alertmanager is asked whether an alert still fires: set alertmanagers"
        )
    if acting and not policy.inventory:
        found.append("rules act on any host that an alert names: set membership")
    actions = {rule.action for rule in config.rules}
    if "nic.restore" in actions and "nic.avoid" not in actions:
        found.append("a rule restores NICs, and none takes any out: add one with the action nic.avoid")
    if "host.drain" in actions and config.drain.command and not config.drain.undo:
        found.append(
            "drain has a command and no undo: a host that is released stays drained in the scheduler"
        )
    if not acting:
        found.append("no rule acts: every mode is observe or dry_run")
    return found


def changes(old: ReceiverConfig, new: ReceiverConfig) -> dict[str, str]:
    """Settings that differ, as `old -> new`, one level below the top; without credentials in URLs, as the journal keeps
    them for ever, for whoever may read it."""
    before, after = (_flat(msgspec.to_builtins(config)) for config in (old, new))
    return {
        name: redact(f"{before.get(name)} -> {after.get(name)}")
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }


def load_inventory(membership: str) -> tuple[Inventory, Leaves]:
    """Host -> devices, and the leaves of NICs that have one, from a membership file; nothing for "". Raises
    ConfigError."""
    hosts = load_membership(Path(membership)).hosts if membership else []
    leaves = {(host.name, nic.device): nic.leaf for host in hosts for nic in host.nics if nic.leaf}
    return {host.name: frozenset(nic.device for nic in host.nics) for host in hosts}, leaves


def _flat(config: dict[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in config.items():
        if name == "rules" and isinstance(value, (list, tuple)):
            flat |= {f"rules.{rule['alert']}": rule for rule in value}
        elif isinstance(value, dict):
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return flat
