"""What a run of a fleet is asked for, whether that can be had, and what is to be measured for it."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fabricpulse.audit.compare.profile import Profile
from fabricpulse.audit.compare.sla import enough_datagrams
from fabricpulse.audit.compare.wiring import Wiring, planned_places
from fabricpulse.audit.fleet.measure import Plan
from fabricpulse.audit.model import Measurement
from fabricpulse.audit.pair_tests.path_tests import Rail, plan_rails
from fabricpulse.audit.pair_tests.transfer_tests import Transfers
from fabricpulse.core.config import Section, load_config
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.host_list import expand
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.web.client_options import ClientOptions


@dataclass(frozen=True)
class FleetOptions:
    """Of `audit run`, by the names of its flags.

    coordinator, membership : who is in the fleet, one of them at most. hosts : a list, to choose among them or in place
    of them. agent_url : with {host} in it. client : for the agents; coordinator_client : None for the same authorities
    alone. profile : values that hosts must have. paths, transfers, ring_s : what is tested between NICs, ring_s seconds
    a ring, 0 for none. all_pairs : not a sample of them. leaves : which hosts hang on which leaf. budget_gb : most that
    transfers send together. yes : nobody need be asked. resume : an interrupted run to go on with. publish : tell the
    agents. wiring, wiring_file : compare where cables go, with the membership or a plan; wiring_wait_s : how long hosts
    listen for that.
    """

    coordinator: str | None
    membership: Path | None
    hosts: str | None
    agent_url: str
    client: ClientOptions
    coordinator_client: ClientOptions | None
    host_timeout_s: float
    profile: Path | None
    paths: bool
    all_pairs: bool
    leaves: Path | None
    transfers: Transfers | None = None
    budget_gb: float = 1000.0
    yes: bool = False
    resume: Path | None = None
    publish: bool = True
    wiring: bool = False
    wiring_file: Path | None = None
    wiring_wait_s: float = 35.0
    ring_s: float = 0.0

    @property
    def tests_paths(self) -> bool:
        """Whether something is sent between NICs."""
        return bool(self.paths or self.transfers or self.ring_s)

    @property
    def asks_wiring(self) -> bool:
        """Whether hosts listen to what switches say of themselves."""
        return self.wiring or self.wiring_file is not None

    @property
    def measures(self) -> bool:
        """Whether hosts are asked for more than an audit of themselves."""
        return self.tests_paths or self.asks_wiring


def refuse(options: FleetOptions, fleet: Membership | None, pinned: Profile | None) -> None:
    """Raises UserError for what cannot be had: before hosts are asked for nothing."""
    wiring = None if options.wiring_file is None else load_config(options.wiring_file, Wiring)
    if options.tests_paths and fleet is None:
        raise UserError("tests of paths need the addresses of NICs: give --coordinator or --membership")
    if options.asks_wiring and fleet is None:
        raise UserError("--wiring needs the NICs of the fleet: give --coordinator or --membership")
    if options.asks_wiring and fleet is not None:
        hosts = {host for host, _ in planned_places(wiring, fleet)}
        if not hosts:
            raise UserError("--wiring: no NIC has a plan: give --wiring-file, or `leaf` in the membership")
        if not any(fleet.host(host) for host in hosts):
            raise UserError(
                f"{options.wiring_file}: none of its hosts is one of this run's, {min(hosts)} for instance"
            )
    transfers = options.transfers
    if transfers is None or pinned is None:
        return
    least_gbps, most_loss = pinned.paths.least_gbps, pinned.paths.most_loss
    if least_gbps and transfers.rate_bps < least_gbps * 1e9:
        raise UserError(
            f"--rate {transfers.rate_bps // 1_000_000} cannot show the {least_gbps:g} Gb/s of {options.profile}: "
            "raise it"
        )
    if most_loss and transfers.datagrams < enough_datagrams(most_loss):
        raise UserError(
            f"--datagrams {transfers.datagrams} cannot show the loss of {most_loss:g} of {options.profile}: give "
            f"{enough_datagrams(most_loss)} at least"
        )


def plan_of(
    options: FleetOptions,
    fleet: Membership,
    leaves: Mapping[str, str],
    answered: Collection[str],
    order: Sequence[str],
    before: Sequence[Measurement],
) -> Plan:
    """What is measured, once people agree to the traffic. leaves : of hosts, before those of the membership. answered :
    hosts that have answered. order : of hosts, for rings. before : what an interrupted run has measured. Raises
    UserError.
    """
    plan = Plan(listen_s=options.wiring_wait_s, before=before)
    if options.tests_paths:
        plan = _with_paths(plan, options, fleet, leaves, answered, order)
    if options.asks_wiring:
        wiring = load_config(options.wiring_file, Wiring) if options.wiring_file else None
        places = {nic: place for nic, place in planned_places(wiring, fleet).items() if nic[0] in answered}
        plan = replace(plan, places=places)
    return plan


def _with_paths(
    plan: Plan,
    options: FleetOptions,
    fleet: Membership,
    leaves: Mapping[str, str],
    answered: Collection[str],
    order: Sequence[str],
) -> Plan:
    most = max(len(fleet.hosts), 1) if options.all_pairs else None
    rails = plan_rails(fleet, answered, leaves, most)
    if options.transfers is not None:
        _consent(options.transfers, rails, options.budget_gb, yes=options.yes)
    if options.ring_s:
        rings = f"rings of all hosts, {options.ring_s:g} s each, as fast as their NICs are"
        _ask("--nccl", f"{rings}; none if a NIC carries a job", yes=options.yes)
    of_nics = {
        (host.name, nic.device): leaves.get(host.name, nic.leaf) for host in fleet.hosts for nic in host.nics
    }
    return replace(
        plan,
        rails=rails,
        leaves=of_nics,
        transfers=options.transfers,
        ring_s=options.ring_s,
        order=order,
        most_rounds=most,
    )


def _consent(transfers: Transfers, rails: Mapping[str, Rail], budget_gb: float, *, yes: bool) -> None:
    """Says what will be sent and asks. Raises UserError beyond the budget, and without a yes."""
    ways = sum(2 * len(pairs) for rail in rails.values() for pairs in rail.plan.rounds)
    rounds = sum(2 * len(rail.plan.rounds) for rail in rails.values())
    cost_gb = transfers.cost(ways) / 1e9
    if cost_gb > budget_gb:
        raise UserError(
            f"transfers would send up to {cost_gb:.4g} GB, the budget is {budget_gb:g} GB: lower --rate or --seconds, "
            "or raise --budget-gb"
        )
    what = (
        f"{ways} transfers in {rounds} rounds, up to {transfers.rate_bps / 1e9:g} Gb/s a NIC and {cost_gb:.3g} GB "
        "altogether"
    )
    if transfers.loss_s:
        what += f", {transfers.loss_s:g} s of each as datagrams, as fast as that"
    _ask("--transfers", f"{what}; NICs that carry a job are left alone", yes=yes)


def _ask(flag: str, what: str, *, yes: bool) -> None:
    """Raises UserError where there is no terminal to ask on."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{flag} puts traffic on the fabric ({what}): say --yes")
    click.confirm(f"Start {what}?", abort=True, err=True)


def load_leaves(path: Path) -> dict[str, str]:
    """host -> leaf of a file `leaves: {leaf-1: "gpu-[001-064]"}`. Raises UserError."""
    found = load_config(path, Leaves)
    return {host: leaf for leaf, hosts in found.leaves.items() for host in expand(hosts)}


class Leaves(Section, frozen=True):
    """Which hosts hang on which leaf: the file of `--leaves`.

    leaves : leaf -> list of hosts, as Slurm writes them.
    """

    leaves: dict[str, str]
