"""How checks are found: each module of `checks` is one of a host, of `checks.fleet` one of hosts together."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fabricpulse.audit import checks
from fabricpulse.audit.checks import fleet
from fabricpulse.audit.host.check import Check, HostCheck
from fabricpulse.audit.model import CATEGORIES


@cache
def host_checks() -> tuple[HostCheck, ...]:
    """All checks of a host, by category and identifier."""
    found = [HostCheck(module.CHECK, module.run) for module in _modules(checks)]
    return tuple(sorted(found, key=lambda entry: _place(entry.check)))


@cache
def checks_of_fleet() -> tuple[Check, ...]:
    """All checks that need more than one host, by category and identifier."""
    return tuple(sorted((module.CHECK for module in _modules(fleet)), key=_place))


@cache
def all_checks() -> Mapping[str, Check]:
    """Identifier -> check, in the order in which they are shown."""
    found = {entry.check.id: entry.check for entry in host_checks()}
    return found | {check.id: check for check in checks_of_fleet()}


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for entry in iter_modules(package.__path__):
        if entry.ispkg:
            continue
        module = import_module(f"{package.__name__}.{entry.name}")
        check: Check = module.CHECK
        if check.id != entry.name.replace("_", "-"):
            raise ValueError(f"check {check.id} stands in {entry.name}.py; a check has the name of its file")
        yield module


def _place(check: Check) -> tuple[int, str]:
    return CATEGORIES.index(check.category), check.id
