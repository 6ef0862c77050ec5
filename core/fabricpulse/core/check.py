"""`fabricpulse check`: is a configuration file good, without starting anything.

A file's kind is one of the entry-point group `fabricpulse.configs`. It follows from `--kind`, from the file's name (the
longest kind that it contains: /etc/fabricpulse/mesh.yaml), or by its keys (the one kind that knows most of them).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import indent

import click
import msgspec
import yaml

from fabricpulse.core.config import MAX_CONFIG_BYTES, Section, load_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.files import read_text_limited
from fabricpulse.core.output import OutputFormat, output_option, print_json, printable
from fabricpulse.core.reference import CONFIGS_GROUP

VALID, INVALID, UNKNOWN = 0, 1, 2
# What a file is called beside the names of its kind; and each <component>-<daemon> is <daemon> where only one is.
_NAMES = {"fleet": "membership", "web": "web-config-file"}


@dataclass(frozen=True)
class Finding:
    """The result for one file. exit_code : VALID, INVALID, or UNKNOWN if it could not be checked."""

    file: str
    kind: str
    exit_code: int
    error: str = ""
    excerpt: str = ""
    warnings: tuple[str, ...] = ()


def kinds() -> dict[str, type[Section]]:
    """All kinds of configuration files, by name."""
    entries = sorted(entry_points(group=CONFIGS_GROUP), key=lambda entry: entry.name)
    return {entry.name: entry.load() for entry in entries}


def kind_of(path: Path, known: dict[str, type[Section]]) -> str | None:
    """The kind of a file by its name, then by its keys; None if it follows from neither. Raises OSError."""
    stem = path.stem.replace("_", "-").lower()
    daemons = [name.split("-")[1] for name in known if name.count("-") == 1]
    names = {
        name.split("-")[1]: name
        for name in known
        if name.count("-") == 1 and daemons.count(name.split("-")[1]) == 1
    }
    names |= {name: name for name in known} | {name: kind for name, kind in _NAMES.items() if kind in known}
    hits = [name for name in names if name in stem]
    if hits:
        return names[max(hits, key=len)]
    try:
        node = yaml.compose(read_text_limited(path, MAX_CONFIG_BYTES), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    keys = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    scores = {
        name: len(keys.intersection(field.encode_name for field in msgspec.structs.fields(kind)))
        for name, kind in known.items()
    }
    best = max(scores.values(), default=0)
    winners = [name for name, score in scores.items() if score == best]
    return winners[0] if best and len(winners) == 1 else None


def check_file(path: Path, kind: str | None = None) -> Finding:
    """Checks one file; the error is that with which its daemon would refuse to start."""
    known = kinds()
    try:
        name = kind or kind_of(path, known)
    except OSError as error:
        return Finding(str(path), "", UNKNOWN, f"cannot read {path}: {error.strerror}")
    if name is None:
        text = f"{path}: cannot tell what kind of file it is; say it with --kind: {', '.join(sorted(known))}"
        return Finding(str(path), "", UNKNOWN, text)
    try:
        content = load_config(path, known[name])
    except ConfigError as error:
        code = UNKNOWN if isinstance(error.__cause__, OSError) else INVALID
        return Finding(str(path), name, code, str(error), error.excerpt)
    warnings = (*content.warnings(), *_unreadable(content, path.parent, ""))
    return Finding(str(path), name, VALID, warnings=warnings)


def _unreadable(value: object, folder: Path, path: str) -> Iterator[str]:
    """Files that a configuration names and that cannot be read here: a warning, as here need not be where it is used.

    By the names of their settings: `..._file`.
    """
    if isinstance(value, Section):
        for field in msgspec.structs.fields(value):
            inner = getattr(value, field.name)
            where = f"{path}.{field.encode_name}" if path else field.encode_name
            if isinstance(inner, str) and inner and field.name.endswith("_file"):
                try:
                    with (folder / inner).open("rb"):
                        pass
                except OSError as error:
                    yield f"{where}: cannot read {folder / inner}: {error.strerror}"
            else:
                yield from _unreadable(inner, folder, where)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _unreadable(item, folder, f"{path}[{index}]")


@click.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kind", metavar="KIND", help="What the files are, instead of by their names and keys.")
@output_option
@click.pass_context
def command(ctx: click.Context, files: tuple[Path, ...], kind: str | None, output: OutputFormat) -> None:
    """Check configuration files without starting a daemon.

    Exit code 0: all are good; 1: one is not; 2: one cannot be read or its kind is not known.
    """
    known = kinds()
    if kind is not None and kind not in known:
        raise click.BadParameter(f"{kind!r} is none of: {', '.join(sorted(known))}", param_hint="--kind")
    findings = [check_file(file, kind) for file in files]
    if output == "json":
        print_json([asdict(finding) | {"valid": finding.exit_code == VALID} for finding in findings])
    else:
        for finding in findings:
            _show(finding)
    ctx.exit(max(finding.exit_code for finding in findings))


def _show(finding: Finding) -> None:
    if finding.exit_code == VALID:
        click.echo(f"{finding.file}: good ({finding.kind})")
        for warning in finding.warnings:
            click.echo(f"  warning: {warning}")
        return
    click.echo(printable(finding.error))
    if finding.excerpt:
        click.echo(indent("\n".join(printable(line) for line in finding.excerpt.split("\n")), "  "))
