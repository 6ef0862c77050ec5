"""How the checks of a host are found: each module of `checks` is one."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from fabricpulse.audit import checks as checks_package
from fabricpulse.audit.host.check import Check, HostCheck


@cache
def host_checks() -> tuple[HostCheck, ...]:
    """All checks of a host, by category and identifier."""
    found = []
    for module in iter_modules(checks_package.__path__):
        loaded = import_module(f"{checks_package.__name__}.{module.name}")
        check: Check = loaded.CHECK
        if check.id != module.name.replace("_", "-"):
            raise ValueError(f"check {check.id} stands in {module.name}.py; a check has the name of its file")
        found.append(HostCheck(check, loaded.run))
    order = ("node", "front-end", "back-end", "fleet")
    return tuple(sorted(found, key=lambda entry: (order.index(entry.check.category), entry.check.id)))
