"""All collectors: every module of the folder `collectors` is imported, and registers what it has."""

import pkgutil
from functools import cache
from importlib import import_module

from fabricpulse.nic import collectors
from fabricpulse.nic.collectors.base import REGISTERED, Registration


@cache
def registered() -> dict[str, Registration]:
    """The collectors by name, in the order of the exposition."""
    for module in pkgutil.iter_modules(collectors.__path__):
        import_module(f"{collectors.__name__}.{module.name}")
    ordered = sorted(REGISTERED.items(), key=lambda found: (found[1].collector.order, found[0]))
    return dict(ordered)
