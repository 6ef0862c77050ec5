"""Which hosts a run asks, and where their agents are. Pure."""

from collections.abc import Sequence

from fabricpulse.audit.fleet.run import Target
from fabricpulse.core.errors import OptionError
from fabricpulse.core.fleet.membership import Membership


def targets(membership: Membership | None, hosts: Sequence[str], agent_url: str) -> list[Target]:
    """The hosts to audit, in order.

    membership : of the fleet, None if only a list was given. hosts : those wanted, [] for all of the membership. A
    host that the membership does not list is audited without rails. agent_url : with `{host}` in it. Raises OptionError
    without any host, or without `{host}`.
    """
    if "{host}" not in agent_url:
        raise OptionError(
            f"--agent-url {agent_url!r} has no {{host}} in it; write it like http://{{host}}:9617"
        )
    names = list(hosts) or ([host.name for host in membership.hosts] if membership else [])
    if not names:
        raise OptionError("no host to audit: give --coordinator, --membership or --hosts")
    found = []
    for name in names:
        member = membership.host(name) if membership else None
        rails = {nic.device: nic.network for nic in member.nics} if member else {}
        # As the membership calls it: findings and tests of paths go by one name.
        own = member.name if member else name
        found.append(Target(own, agent_url.replace("{host}", name).rstrip("/"), rails))
    return found
