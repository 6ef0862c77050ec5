"""Below which leaf each NIC of a job hangs, as the coordinator of clocksync serves the membership of the fleet."""

import ipaddress
from collections import defaultdict

import aiohttp
import msgspec

from fabricpulse.core.errors import ConfigError
from fabricpulse.core.fleet.membership import MOST_LEAF, Host, Membership
from fabricpulse.core.output import printable
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import redact
from fabricpulse.why.facts import Facts, NicId

_MOST_NAMED = 3


async def read_leaves(
    url: str, config: HttpClientConfig, facts: Facts
) -> tuple[dict[str, str], tuple[str, ...]]:
    """NIC of the job -> its leaf, as far as it is known, and sentences of what is not known. Never raises."""
    try:
        async with (
            HttpClient(config) as client,
            client.get(f"{url.rstrip('/')}/api/v1/membership") as response,
        ):
            body = await read_body(response)
            if response.status != 200:
                return {}, (f"coordinator at {redact(url)} answers {response.status}: leaves are unknown",)
        # As JSON: that it is a valid file, too, costs seconds for a large fleet.
        membership = msgspec.json.decode(body, type=Membership)
    except ConfigError as error:
        return {}, (f"coordinator at {redact(url)} cannot be asked: {printable(str(error))}",)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return {}, (f"coordinator at {redact(url)} cannot be reached: {printable(describe(error))}",)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return {}, (f"what answers at {redact(url)} is no coordinator: {printable(str(error))[:300]}",)
    return select(membership, facts)


def select(membership: Membership, facts: Facts) -> tuple[dict[str, str], tuple[str, ...]]:
    """The NICs of the job's hosts with a leaf, and which hosts the fleet does not list. Pure."""
    leaves: dict[str, str] = {}
    listed = _by_name(membership, facts)
    for name, found in listed.items():
        # What the coordinator has not checked: a longer name is nobody's, and would fill the evidence.
        leaves |= {
            str(NicId(name, nic.device)): nic.leaf for nic in found.nics if 0 < len(nic.leaf) <= MOST_LEAF
        }
    unlisted = [host.name for host in facts.hosts if host.name not in listed]
    if not unlisted:
        return leaves, ()
    named = ", ".join(unlisted[:_MOST_NAMED]) + (", …" if len(unlisted) > _MOST_NAMED else "")
    return leaves, (
        f"the coordinator does not list {len(unlisted)} of {len(facts.hosts)} hosts ({printable(named)})",
    )


def _by_name(membership: Membership, facts: Facts) -> dict[str, Host]:
    """Host of the job -> as it is listed: under the same name, or a short and a fully qualified one of which there is
    one each. Two qualified names are two hosts, and an address has no short form: a wrong leaf says that flows do not
    meet."""
    exact = {host.name.lower(): host for host in membership.hosts}
    alike: defaultdict[str, list[Host]] = defaultdict(list)
    for host in membership.hosts:
        alike[_short(host.name)].append(host)
    asked: defaultdict[str, int] = defaultdict(int)
    for of_job in facts.hosts:
        asked[_short(of_job.name)] += 1
    found = {}
    for of_job in facts.hosts:
        name, short = of_job.name.lower(), _short(of_job.name)
        if name in exact:
            found[of_job.name] = exact[name]
        elif asked[short] == len(alike[short]) == 1 and short in (name, alike[short][0].name.lower()):
            found[of_job.name] = alike[short][0]
    return found


def _short(name: str) -> str:
    """In lower case, up to the first dot; an address as it is."""
    name = name.lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.partition(".")[0]
    return name
