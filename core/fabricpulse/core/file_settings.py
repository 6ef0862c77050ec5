"""Settings that name files, and what their daemons do with the files.

    key_file: Annotated[str, READ_FILE] = ""
    membership: Annotated[str, read_file("fabricpulse.core.fleet.membership:load_membership")] = ""

The role stands in the type of the setting, so that `fabricpulse check` need not guess it from the name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Meta

from fabricpulse.core.config import Section

_KEY = "file"


@dataclass(frozen=True)
class FileRole:
    """use : `read` = the daemon does not start without the file; `written` = it makes it, or its absence is the normal
    state. reader : function that reads the file as the daemon does, as "module:name": it is given the path and raises
    ConfigError; a name, so that a daemon does not load what only a check needs. beside : a relative path counts from
    the folder of the configuration file, not from the working directory of the daemon. advice : what to do where it is
    missing; {file} is its path.
    """

    use: Literal["read", "written"]
    reader: str = ""
    beside: bool = False
    advice: str = ""


def read_file(reader: str = "", *, beside: bool = False, advice: str = "") -> Meta:
    """The type of a setting whose file the daemon reads at its start; arguments as of FileRole."""
    return Meta(extra={_KEY: FileRole("read", reader, beside, advice)})


READ_FILE = read_file()
WRITTEN_FILE = Meta(extra={_KEY: FileRole("written")})
# Read whenever it changes, and none is as good as one: a switch that people throw.
MARKER_FILE = WRITTEN_FILE
TOKEN_READER = "fabricpulse.core.web.token_file:TokenFile"  # noqa: S105 - the name of a function
TOKEN_FILE = read_file(TOKEN_READER)
# A secret that all hosts share.
MAKE_SECRET = (
    "make it once, (umask 077; openssl rand -hex 32 >{file}), copy it to all hosts, chown fabricpulse {file}"  # noqa: S105
)


def file_roles(kind: type[Section]) -> dict[str, FileRole]:
    """The roles of the settings of one section, inner ones not included, by the names of their fields."""
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, msgspec.inspect.StructType):
        raise TypeError(f"{kind} is not a configuration section")
    found = {field.name: _role_in(field.type) for field in info.fields}
    return {name: role for name, role in found.items() if role is not None}


def _role_in(info: Any) -> FileRole | None:
    if isinstance(info, msgspec.inspect.UnionType):
        return next((role for role in map(_role_in, info.types) if role), None)
    role = (getattr(info, "extra", None) or {}).get(_KEY)
    return role if isinstance(role, FileRole) else None


def sections_of(value: object, path: str = "") -> Iterator[tuple[str, Section]]:
    """All sections of a configuration, inner ones first, with their paths ("" for the whole)."""
    if isinstance(value, Section):
        for field in msgspec.structs.fields(value):
            inner = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from sections_of(getattr(value, field.name), inner)
        yield path, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from sections_of(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from sections_of(item, f"{path}.{key}")
