"""The names under which NCCL and RCCL look for plugins, as links to the one library.

Both try the value of NCCL_NET_PLUGIN or NCCL_PROFILER_PLUGIN as it is, and then PREFIX-VALUE.so on the library path;
without a value, PREFIX.so (net only: the profiler is then taken from the net plugin's library). RCCL's prefixes are
its own, except that its releases from NCCL 2.29 on look for profilers by NCCL's (src/plugin/plugin_open.cc and net.cc
of each release).

Links, not copies: loaded by two names, one file is one library in the process, and its net and profiler parts know of
one another. A wheel cannot hold links, hence a command.
"""

import os
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.plugin.environment import NET_NAME, NET_PREFIXES, PROFILER_PREFIXES


def link_names(default: bool) -> tuple[str, ...]:
    """The file names of the links. default : also those that are found without any variable."""
    named = tuple(f"{prefix}-{NET_NAME}.so" for prefix in (*NET_PREFIXES, *PROFILER_PREFIXES))
    return (*named, *(f"{prefix}.so" for prefix in NET_PREFIXES)) if default else named


def make_links(library: Path, folder: Path, default: bool = False) -> list[Path]:
    """Makes `folder` if need be, and the links to `library` in it; returns them all.

    Links that lead elsewhere are replaced at once (a job that starts meanwhile finds the old or the new one); what is
    no link is left. Raises UserError when a name is taken by something else, before anything is changed, or when a
    link cannot be made.
    """
    wanted = [folder / name for name in link_names(default)]
    for path in wanted:
        if path.exists() and not path.is_symlink() and not path.samefile(library):
            raise UserError(
                f"{path} exists and is no link: another plugin's library? Choose another folder, or move it away"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in wanted:
            if path.exists() and path.samefile(library):
                continue
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(library)
            fresh.replace(path)
    except OSError as error:
        raise UserError(f"cannot link the plugin in {folder}: {error.strerror or error}") from error
    return wanted
