"""Names of switches in the character set that other programs allow. Pure."""

import re
from collections.abc import Iterable

from fabricpulse.core.errors import UserError

# Of a label's value in Kubernetes.
_MOST = 63


def plain_names(names: Iterable[str], most: int = _MOST) -> dict[str, str]:
    """Each name with letters, digits, `.`, `_` and `-` alone, none but letters and digits at its ends.

    Raises UserError for two that would become one, or one of which nothing is left.
    """
    found: dict[str, str] = {}
    owner: dict[str, str] = {}
    for name in dict.fromkeys(names):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:most].strip("._-")
        if not plain:
            raise UserError(
                f"switch name {name!r} has no letter or digit; give it another in the file of places"
            )
        if (first := owner.setdefault(plain, name)) != name:
            raise UserError(
                f"switch names {first!r} and {name!r} are both {plain!r} where only letters, digits and .-_ are "
                "allowed; rename one in the file of places"
            )
        found[name] = plain
    return found
