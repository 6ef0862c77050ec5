"""Configuration files: YAML into a typed, frozen tree, or one sentence that says what is wrong and where.

A daemon declares its configuration as frozen `msgspec.Struct`s with defaults and constraints; `load_config` reads the
file once at start. An unknown key is refused with its line and the nearest key that exists, because a misspelt guard
rail that is silently ignored is worse than a daemon that does not start.
"""

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import yaml

from fabricpulse.core.errors import ConfigError, UserError, is_exhausted
from fabricpulse.core.files import read_text_limited
from fabricpulse.core.log import get_logger

log = get_logger(__name__)

# A membership of 50,000 hosts with eight NICs each has about 40 MiB.
MAX_CONFIG_BYTES = 128 << 20

T = TypeVar("T", bound="Section")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every configuration section: immutable, keyword only, unknown keys refused."""

    # A key without a value (`tls_server_config:`) stands for its default, as Go's YAML has it.
    NULL_IS_DEFAULT: ClassVar[bool] = False
    # "module:name" of what reads, as the daemon does, the files that only together say whether they can be used: it is
    # given the path of the configuration file and the section, and raises ConfigError.
    FILES_READER: ClassVar[str] = ""

    def validate(self) -> None:
        """Checks that need more than one field; raises ValueError with one clause ("a must be below b")."""

    def warnings(self) -> list[str]:
        """Accepted settings that may not be intended, each as one sentence: for `fabricpulse check`."""
        return []

    def file_warnings(self, contents: Mapping[str, object]) -> list[str]:
        """As `warnings`, of the settings together with the files that they name.

        contents : what the readers of the files returned, by setting ("membership.file"); of those that could be read.
        """
        return []


def changed_settings(old: Section, new: Section, prefix: str = "") -> list[str]:
    """The keys whose values differ, as in the file: probe.down_after_s."""
    changed = []
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        path = prefix + field.encode_name
        if isinstance(before, Section) and type(before) is type(after):
            changed += changed_settings(before, after, f"{path}.")
        elif before != after:
            changed.append(path)
    return changed


def warn_of_restart(path: Path, old: Section, new: Section, applied: Collection[str] = ()) -> None:
    """Logs which settings differ and come into force with a restart only.

    applied : settings at the top whose changes are in force, sections with all that is in them. So a new setting is one
    that needs a restart until it is listed, and no change is without effect and unsaid.
    """
    changed = [name for name in changed_settings(old, new) if name.partition(".")[0] not in applied]
    if changed:
        log.warning("changed settings need a restart", config=str(path), settings=", ".join(changed))


def load_config(path: Path | None, kind: type[T]) -> T:
    """Reads `path` as a `kind`; without a path, its defaults.

    Raises ConfigError naming file, line, key and, for an unknown key, the nearest known one.
    """
    if path is None:
        return _convert({}, kind, None, None)
    try:
        text = read_text_limited(path, MAX_CONFIG_BYTES)
    except OSError as error:
        refused = ConfigError(f"cannot read configuration {path}: {error.strerror}")
        if is_exhausted(error):  # the file may be good
            refused.exit_code = UserError.exit_code
        raise refused from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration {path} is not UTF-8 text: {error.reason}") from error
    return parse_config(text, kind, str(path))


def parse_config(text: str, kind: type[T], name: str) -> T:
    """As load_config, from text; `name` stands for the file in messages."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_duplicates(node, name, text, set())
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        message = f"{name}{line}: not valid YAML: {error.problem or error.context}"
        raise ConfigError(message, _excerpt(text, mark, 1)) from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            f"{name}: not valid YAML: {error.reason} (character {error.character!r} at {error.position})"
        ) from error
    except (ValueError, yaml.YAMLError) as error:  # ValueError: a date or a number out of range
        raise ConfigError(f"{name}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: expected a mapping of settings at the top, got {type(data).__name__}")
    return _convert(data, kind, node, name, text)


def _refuse_duplicates(node: yaml.Node | None, name: str, text: str, seen: set[int]) -> None:
    """Raises ConfigError for a key that stands twice in one mapping: YAML would silently take the last.

    seen : ids of the nodes that were checked. An alias is its anchor's node again, and aliases of aliases may be many.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(item, name, text, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key.value, str) and key.value != "<<":
                if key.value in lines:
                    raise ConfigError(
                        f"{name}:{line}: key {key.value!r} is set twice, first on line {lines[key.value]}",
                        _excerpt(text, key.start_mark, len(key.value)),
                    )
                lines[key.value] = line
            _refuse_duplicates(value, name, text, seen)


def _excerpt(text: str, mark: yaml.Mark | None, length: int) -> str:
    """The line of `mark` with `length` carets below what is there, at most to the end of the line."""
    lines = text.splitlines()
    if mark is None or not 0 <= mark.line < len(lines):
        return ""
    number, line = f"{mark.line + 1} | ", lines[mark.line].rstrip()
    # Tabs stay, so that the caret is below its place however wide they are shown.
    indent = "".join(character if character == "\t" else " " for character in line[: mark.column])
    carets = "^" * max(1, min(length, len(line) - mark.column))
    return f"{number}{line}\n{' ' * (len(number) - 2)}| {indent}{carets}"


def _convert(
    data: dict[str, Any], kind: type[T], node: yaml.Node | None, name: str | None, text: str = ""
) -> T:
    if kind.NULL_IS_DEFAULT:
        data = _without_nulls(data)
    try:
        config = msgspec.convert(data, kind, strict=True)
        _validate_tree(config, "")
    except msgspec.ValidationError as error:
        names = error.names if isinstance(error, _SectionError) else ()
        raise _explained(str(error), kind, node, name, text, names) from error
    return config


def _without_nulls(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in data.items()
        if value is not None
    }


def _validate_tree(value: Any, path: str) -> None:
    """Calls `validate` of every section, inner ones first, and names the section in what they raise. Numbers must be
    finite.
    """
    if isinstance(value, Section):
        for field in value.__struct_fields__:
            _validate_tree(getattr(value, field), f"{path}.{field}" if path else field)
        try:
            value.validate()
        except ValueError as error:
            if isinstance(error, msgspec.ValidationError):
                raise
            where = f" - at `$.{path}`" if path else ""
            raise _SectionError(f"{error}{where}", _names_in(str(error), value)) from error
    elif isinstance(value, float) and not math.isfinite(value):
        # Most settings have a lower bound only, which infinity passes; and NaN passes what is compared by hand.
        raise msgspec.ValidationError(f"{value} is no number to work with - at `$.{path}`")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _validate_tree(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            _validate_tree(item, f"{path}.{key}" if path else str(key))


class _SectionError(msgspec.ValidationError):
    """What `validate` raised. names : settings of the section that the sentence names, in its order."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


def _names_in(sentence: str, section: Section) -> list[str]:
    known = {field.encode_name for field in msgspec.structs.fields(section)}
    return [word for word in re.findall(r"\w+", sentence) if word in known]


_AT = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<key>.+)`$")


def _explained(
    message: str, kind: type, node: yaml.Node | None, name: str | None, text: str, names: Sequence[str]
) -> ConfigError:
    """names : settings at the place of the message, of which the first that the file has is shown."""
    at = _AT.search(message)
    path = at.group("path") if at else ""
    what = _AT.sub("", message)
    unknown = _UNKNOWN.match(what)
    if unknown:
        key = unknown.group("key")
        known = _fields_at(kind, path)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        path = f"{path}.{key}" if path else key
        what = f"unknown key {path!r}; {hint}"
    elif path:
        what = f"{path}: {what[0].lower()}{what[1:]}"
        if choices := _choices_at(kind, path):
            what += f"; one of {', '.join(choices)}"
        if re.search("`(int|float)`.*got `str`", what) and (number := _number_in_text(node, path)):
            what += f"; YAML takes it for text, write {number}"
    named = (_exact_place_of(node, f"{path}.{key}" if path else key) for key in names)
    place = next((found for found in named if found is not None), None) or _place_of(node, path)
    line = f":{place.start_mark.line + 1}" if place is not None else ""
    length = len(place.value) if isinstance(place, yaml.ScalarNode) else 1
    excerpt = _excerpt(text, place.start_mark, length) if place is not None else ""
    return ConfigError(f"{name or 'configuration'}{line}: {what}", excerpt)


# Of a number that is shown in full.
_MOST_DIGITS = 20
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def _place_of(node: yaml.Node | None, path: str) -> yaml.Node | None:
    """The key, or item of a list, at `path` (msgspec form, "a.b[2].c"), or its nearest parent that exists."""
    place = None
    for key, index in _STEP.findall(path):
        if isinstance(node, yaml.MappingNode) and (key or index == "..."):
            pairs = [pair for pair in node.value if index == "..." or pair[0].value == key]
            if not pairs:
                return place
            place, node = pairs[0]
        elif isinstance(node, yaml.SequenceNode) and index.isdigit() and int(index) < len(node.value):
            place = node = node.value[int(index)]
        else:
            return place
    return place


def _exact_place_of(node: yaml.Node | None, path: str) -> yaml.Node | None:
    """The key at `path`, None where the file does not have it."""
    place = _place_of(node, path)
    return place if isinstance(place, yaml.ScalarNode) and place.value == path.rpartition(".")[2] else None


def _number_in_text(node: yaml.Node | None, path: str) -> str:
    """The number that people read in the text at `path`, written so that YAML 1.1 does, too; "" where there is none."""
    for key, index in _STEP.findall(path):
        if isinstance(node, yaml.MappingNode) and key:
            node = next((value for name, value in node.value if name.value == key), None)
        elif isinstance(node, yaml.SequenceNode) and index.isdigit():
            node = node.value[int(index)]
        else:
            return ""
    try:
        number = Decimal(node.value) if isinstance(node, yaml.ScalarNode) else Decimal("nan")
    except InvalidOperation:
        return ""
    return f"{number:f}" if number.is_finite() and abs(number.adjusted()) < _MOST_DIGITS else ""


def _type_at(kind: Any, path: str) -> Any:
    """The type at `path` by msgspec.inspect; None where there is no such place."""
    info: Any = msgspec.inspect.type_info(kind)
    for key, _index in _STEP.findall(path):
        info = _descend(info, key)
        if info is None:
            return None
    return info


def _fields_at(kind: Any, path: str) -> list[str]:
    """Names of the fields of the struct at `path`."""
    info = _structs(_type_at(kind, path))
    return [field.encode_name for field in info.fields] if info is not None else []


def _choices_at(kind: Any, path: str) -> list[str]:
    """The values that the setting at `path` can have, where its type lists them."""
    info = _first(_type_at(kind, path), msgspec.inspect.LiteralType)
    return [repr(value) for value in info.values] if info is not None else []


def _descend(info: Any, key: str) -> Any:
    if key:
        struct = _structs(info)
        if struct is not None:
            return next((field.type for field in struct.fields if field.encode_name == key), None)
        return getattr(_first(info, msgspec.inspect.DictType), "value_type", None)
    inner = _first(info, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType, msgspec.inspect.DictType))
    return getattr(inner, "item_type", None) or getattr(inner, "value_type", None)


def _structs(info: Any) -> Any:
    return _first(info, msgspec.inspect.StructType)


def _first(info: Any, kinds: Any) -> Any:
    if isinstance(info, kinds):
        return info
    if isinstance(info, msgspec.inspect.UnionType):
        return next((t for t in info.types if isinstance(t, kinds)), None)
    return None
