"""Which devices are exported. Decided by name before anything of a device is opened."""

import re
from dataclasses import dataclass

from fabricpulse.core.errors import ConfigError

# Links that no cable belongs to. A fabric NIC may be a veth in the lab: those have names of their own choice.
VIRTUAL = (
    r"lo|veth.*|docker\d*|br-.*|virbr\d*|vnet\d*|tap.*|tun.*|cali.*|cilium.*|lxc.*|flannel.*|cni\d*|kube-.*"
    r"|dummy.*|ifb\d*|nodelocaldns|vxlan.*|gre\d*|gretap\d*|erspan\d*|ip6.*|sit\d*|tunl\d*|teql\d*"
)


@dataclass(frozen=True)
class DeviceFilter:
    """include, exclude : regular expressions that a name must match wholly; an empty one is not applied."""

    include: str = ""
    exclude: str = ""

    def __post_init__(self) -> None:
        for option, pattern in (("device-include", self.include), ("device-exclude", self.exclude)):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"--nic.{option} {pattern!r} is not a regular expression: {error}"
                ) from error

    @property
    def is_set(self) -> bool:
        """Whether the user has set a filter."""
        return bool(self.include or self.exclude)

    def allows(self, *names: str) -> bool:
        """Whether a device with these names passes: no name is excluded, and one is included if `include` is set."""
        if self.exclude and any(re.fullmatch(self.exclude, name) for name in names if name):
            return False
        return not self.include or any(re.fullmatch(self.include, name) for name in names if name)

    def allows_netdev(self, netdev: str, *others: str) -> bool:
        """As `allows`, for a netdev: virtual ones only when `include` names them."""
        if not self.include and re.fullmatch(VIRTUAL, netdev):
            return False
        return self.allows(netdev, *others)
