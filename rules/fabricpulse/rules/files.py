"""The compiled mixin as files: one rule file a group, one file a dashboard."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import atomic_write, named
from fabricpulse.rules.mixin import Mixin

HEADER = "# generated from mixins/ by `fabricpulse rules render`: do not edit\n"

# Of all dashboards.
_TAG = "fabricpulse-mixin"

# The order in which people read a rule.
_RULE_KEYS = ("alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations")


def rendered_files(mixin: Mixin) -> dict[str, str]:
    """Path within the output folder -> content."""
    out: dict[str, str] = {}
    for folder, groups in (("alerts", mixin.alerts), ("recording", mixin.rules)):
        for group in groups:
            if group["rules"]:
                name = group["name"].removeprefix("fabricpulse-").removesuffix(".rules")
                out[f"{folder}/{name}.yaml"] = rules_yaml([group])
    for name, dashboard in mixin.dashboards.items():
        out[f"dashboards/{name}"] = json_text(dashboard)
    return out


def json_text(dashboard: dict[str, Any]) -> str:
    """A dashboard as a file."""
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def rules_yaml(groups: list[dict[str, Any]]) -> str:
    """A Prometheus rule file."""
    # jsonnet sorts names; people read the group's first.
    ordered = [
        {"name": group["name"]} | group | {"rules": [_ordered(rule) for rule in group["rules"]]}
        for group in groups
    ]
    return HEADER + yaml.safe_dump(
        {"groups": ordered}, sort_keys=False, width=10_000, allow_unicode=True, default_flow_style=False
    )


def _ordered(rule: dict[str, Any]) -> dict[str, Any]:
    return {key: rule[key] for key in _RULE_KEYS if key in rule} | rule


def differences(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """What stands in `folder` and should not, is missing, or differs: paths, a word for each. Raises UserError."""
    found = []
    try:
        for path, content in expected.items():
            try:
                if (folder / path).read_bytes() != content.encode():
                    found.append(f"{path} differs")
            except (FileNotFoundError, NotADirectoryError):
                found.append(f"{path} is missing")
        found += [f"{path.relative_to(folder)} is left over" for path in _left_over(folder, expected)]
    except OSError as error:
        raise UserError(f"cannot read the rules in {folder}: {error.strerror}: {error.filename}") from error
    return sorted(found)


def write(folder: Path, content: Mapping[str, str]) -> None:
    """Writes the files and removes compiled ones that no longer belong there. Raises UserError. A Prometheus or Grafana
    that reads them meanwhile sees each as it was or as it is now, and one that does not change is not touched.
    """
    try:
        for path, text in content.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            _replace(file, text.encode())
        for file in _left_over(folder, content):
            file.unlink()
    except OSError as error:
        raise UserError(f"cannot write the rules to {folder}: {error.strerror}: {error.filename}") from error


def _replace(file: Path, content: bytes) -> None:
    try:
        with file.open("rb") as opened:
            if opened.read() == content:
                return
            status = os.fstat(opened.fileno())
        mode = stat.S_IMODE(status.st_mode)
        # Who is not root may replace a file of another in a folder that both may write to.
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
    except FileNotFoundError:
        mode, owner = 0o644, None
    # What a symbolic link leads to, as it is written in place.
    atomic_write(file.resolve(), content, mode=mode, owner=owner)


def _left_over(folder: Path, expected: Mapping[str, str]) -> list[Path]:
    """Files that an earlier rendering of the same form wrote. Only in folders that this one writes to: other forms may
    live beside it.
    """
    keep = {folder / path for path in expected}
    folders = sorted({file.parent for file in keep} - {folder})
    files = [file for place in folders for file in (*named(place, ".yaml"), *named(place, ".json"))]
    ours = (file for file in files if file.suffix == ".yaml" or file.name.startswith("fabricpulse-"))
    return [file for file in ours if file not in keep and _is_rendered(file)]


def _is_rendered(file: Path) -> bool:
    """Rules by their first line; dashboards by what the mixin makes of their name: somebody's own may begin with it."""
    content = file.read_bytes()
    if file.suffix != ".json":
        return content.startswith(HEADER.encode())
    try:
        match json.loads(content):
            case {"uid": uid}:
                return bool(uid == hashlib.md5(file.stem.encode(), usedforsecurity=False).hexdigest())
            case {"metadata": {"name": file.stem, "tags": [*tags]}}:
                return _TAG in tags
    except ValueError:
        pass
    return False
