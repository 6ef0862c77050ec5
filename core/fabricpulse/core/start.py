"""A cheap start of a daemon: six of them start on a host at once, on cores that a job needs.

Between `begin_start` and `end_start` a daemon imports what it is made of.
"""

import gc
from typing import Any


def begin_start() -> None:
    """Saves a third of the cost of the imports: garbage collection, and the certificate authorities of the system,
    which aiohttp loads twice while it is imported. `core.web.client` loads them for the first https request; aiohttp's
    own TLS context then trusts no authority.
    """
    gc.disable()
    import ssl

    loaders = {
        name: getattr(ssl.SSLContext, name) for name in ("load_default_certs", "set_default_verify_paths")
    }
    for name in loaders:
        setattr(ssl.SSLContext, name, _no_op)
    try:
        import aiohttp  # noqa: F401
    finally:
        for name, loader in loaders.items():
            setattr(ssl.SSLContext, name, loader)


def end_start() -> None:
    """Excludes all objects so far from garbage collection (gc.freeze) and enables it again; no effect without
    `begin_start`.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _no_op(*_: Any) -> None:
    """In place of a method of SSLContext."""
