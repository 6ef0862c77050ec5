"""Below which leaf each NIC of a job hangs, as the coordinator of clocksync serves the membership of the fleet."""

import aiohttp
import msgspec

from fabricpulse.core.fleet.membership import Host, Membership
from fabricpulse.core.output import printable
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import redact
from fabricpulse.why.facts import Facts, NicId

# Of 50,000 hosts with eight NICs.
_MOST_BODY = 128 << 20
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
            body = await read_body(response, _MOST_BODY)
            if response.status != 200:
                return {}, (f"coordinator at {redact(url)} answers {response.status}: leaves are unknown",)
        # As JSON: that it is a valid file, too, costs seconds for a large fleet.
        membership = msgspec.json.decode(body, type=Membership)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return {}, (f"coordinator at {redact(url)} cannot be reached: {printable(describe(error))}",)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return {}, (f"what answers at {redact(url)} is no coordinator: {printable(str(error))[:300]}",)
    return select(membership, facts)


def select(membership: Membership, facts: Facts) -> tuple[dict[str, str], tuple[str, ...]]:
    """The NICs of the job's hosts with a leaf, and which hosts the fleet does not list. Pure."""
    leaves: dict[str, str] = {}
    unlisted = []
    exact = {host.name.lower(): host for host in membership.hosts}
    short: dict[str, Host | None] = {}
    for listed in membership.hosts:
        name = listed.name.lower().partition(".")[0]
        short[name] = None if name in short else listed
    for host in facts.hosts:
        found = exact.get(host.name.lower()) or short.get(host.name.lower().partition(".")[0])
        if found is None:
            unlisted.append(host.name)
            continue
        leaves |= {str(NicId(host.name, nic.device)): nic.leaf for nic in found.nics if nic.leaf}
    if not unlisted:
        return leaves, ()
    named = ", ".join(unlisted[:_MOST_NAMED]) + (", …" if len(unlisted) > _MOST_NAMED else "")
    return leaves, (
        f"the coordinator does not list {len(unlisted)} of {len(facts.hosts)} hosts ({printable(named)})",
    )
