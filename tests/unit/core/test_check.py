"""`fabricpulse check`: what a daemon would say of its file, without the daemon."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from fabricpulse.core.check import check_file, command, kind_of, kinds

SAMPLES = Path(__file__).parents[3] / "deploy" / "config"
KIND_OF_SAMPLE = {"fleet": "membership", "web": "web-config-file"}


def check(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_sample_configurations_are_known_and_good(path: Path, tmp_path: Path) -> None:
    """By their name; and by their keys when they are called something else."""
    kind = KIND_OF_SAMPLE.get(path.stem, path.stem)
    assert kind_of(path, kinds()) == kind
    assert check_file(path).exit_code == 0
    other = tmp_path / "x.yaml"
    other.write_text(path.read_text())
    assert kind_of(other, kinds()) in (kind, None)  # never another one


def test_every_kind_that_is_read_can_be_checked() -> None:
    """Whatever class a command or daemon gives to load_config is a kind of `check`."""
    read = {
        call.args[1].id
        for path in SAMPLES.parents[1].glob("*/fabricpulse/**/*.py")
        if "load_config(" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") == "load_config"
        and isinstance(call.args[1], ast.Name)
    }
    assert read >= {"MeshConfig", "Profile", "PlacesFile"}
    assert read <= {kind.__name__ for kind in kinds().values()}


def settings(
    values: dict[str, Any], defaults: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Each value of a file and the default of its setting."""
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, msgspec.Struct):
            yield from settings(value, msgspec.structs.asdict(default), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value, default


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_numbers_that_samples_comment_out_are_the_defaults(path: Path) -> None:
    """A setting that is commented out shows its default; where that is no number above 0, an example."""
    kind = kinds()[KIND_OF_SAMPLE.get(path.stem, path.stem)]
    text = path.read_text()
    offered = re.sub(r"^#(?=[a-z_]+\S*:)", "", re.sub(r"^#(?=  )", "", text, flags=re.M), flags=re.M)
    defaults = {
        field.encode_name: field.default
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    }
    given = yaml.safe_load(text) or {}
    shown = {key: value for key, value in yaml.safe_load(offered).items() if key not in given}
    different = [
        (key, value, default)
        for key, value, default in settings(shown, defaults)
        if isinstance(default, (int, float)) and default > 0 and value != default
    ]
    assert different == []


def test_a_mesh_without_membership_is_a_mistake(tmp_path: Path) -> None:
    """As the daemon refuses it at the start; an empty file, too."""
    for number, text in enumerate(("", "probe: {trains_per_s: 20}\n")):
        path = tmp_path / f"mesh-{number}.yaml"
        path.write_text(text)
        result = check(path)
        assert (result.exit_code, "no membership is configured" in result.output) == (1, True)


def test_a_mistake_is_shown_with_its_place(tmp_path: Path) -> None:
    """File, line, key, the nearest key, and a caret below it; exit code 1."""
    path = tmp_path / "mesh.yaml"
    path.write_text("host: a\nprobe:\n  down_afer_s: 1\n")
    result = check(path)

    assert result.exit_code == 1
    assert result.output == (
        f"{path}:3: unknown key 'probe.down_afer_s'; did you mean 'down_after_s'?\n"
        "  3 |   down_afer_s: 1\n"
        "    |   ^^^^^^^^^^^\n"
    )


def test_json_and_several_files(tmp_path: Path) -> None:
    """The worst file gives the exit code; each has its own entry."""
    good, bad, unknown = tmp_path / "nic.yaml", tmp_path / "qp.yaml", tmp_path / "x.yaml"
    good.write_text("")
    bad.write_text("a: [\n")
    unknown.write_text("zzz: 1\n")
    result = check("--output", "json", good, bad)
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert [entry["valid"] for entry in document] == [True, False]
    assert document[1]["kind"] == "qp"
    assert "not valid YAML" in document[1]["error"]
    assert check(good, bad, unknown).exit_code == 2
    assert check(tmp_path / "mesh.yaml").exit_code == 2
    assert "No such file" in check(tmp_path / "mesh.yaml").output


def test_kind(tmp_path: Path) -> None:
    """--kind overrules the name; one that does not exist is a usage error that lists those that do."""
    path = tmp_path / "mesh.yaml"
    path.write_text("hosts: [{name: a, nics: [{device: r0, address: 10.0.0.1, network: n0}]}]\n")
    assert check(path).exit_code == 1
    assert check("--kind", "membership", path).output == f"{path}: good (membership)\n"
    result = check("--kind", "mash", path)
    assert result.exit_code == 2
    assert "remediation-receiver" in result.output


def test_what_is_not_honoured_is_a_warning(tmp_path: Path) -> None:
    """A good file may still deserve a word."""
    path = tmp_path / "web.yaml"
    path.write_text("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequestClientCert}\n")
    result = check(path)
    assert result.exit_code == 0
    assert "warning: client_auth_type RequestClientCert" in result.output


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("", True),
        ("receiver: http://[::1]:9615\n", True),
        ("receiver: http://monitor:9615, http://127.0.0.1:9615\n", True),
        ("receiver: http://monitor:9615\n", False),
    ],
)
def test_an_agent_without_a_receiver_of_its_own(tmp_path: Path, text: str, warned: bool) -> None:
    """The default is this host, where a receiver is on one host of the fleet."""
    path = tmp_path / "remediation-node.yaml"
    path.write_text(text)
    result = check(path)
    assert result.exit_code == 0
    assert ("this host itself" in result.output) == warned


def test_control_characters_are_shown_as_such(tmp_path: Path) -> None:
    """A file from elsewhere does not drive the terminal."""
    path = tmp_path / "mesh.yaml"
    path.write_text('"\\e[2Jx": 1\n')
    result = check(path)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
