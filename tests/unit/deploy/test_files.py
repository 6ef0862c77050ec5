"""`fabricpulse files`: shows its plan, carries it out with --apply, and never overwrites changed files unasked."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from fabricpulse.core.cli import cli
from fabricpulse.deploy.catalogue import catalogue, data_folder
from fabricpulse.deploy.fill_in import Values, filled_in


def files(*words: str) -> Result:
    return CliRunner().invoke(cli, ["files", *words])


def write(root: Path, *words: str) -> Result:
    result = files("write", "host", "--root", str(root), *words)
    assert result.exit_code == 0, result.output
    return result


def test_every_file_is_there_and_each_goes_to_a_place_of_its_own() -> None:
    """The catalogue names what exists; on one machine no two files have one place; each unit has its settings."""
    for role in ("host", "monitor"):
        targets = [file.target for file in catalogue() if file.role == role]
        assert len(targets) == len(set(targets))
        for target in targets:
            if target.endswith(".service"):
                settings = Path(target).stem.removeprefix("fabricpulse-")
                assert f"/etc/fabricpulse/{settings}.yaml" in targets
    assert all((data_folder() / file.source).is_file() for file in catalogue())
    in_catalogue = {file.source for file in catalogue()}
    for folder in ("systemd", "config", "grafana"):
        for path in (data_folder() / "deploy" / folder).rglob("*"):
            assert path.is_dir() or str(path.relative_to(data_folder())) in in_catalogue


def test_nothing_is_written_without_apply(tmp_path: Path) -> None:
    """It says what it would write, and that it wrote nothing."""
    result = write(tmp_path)
    assert "would write" in result.output
    assert result.output.endswith("nothing was written: --apply writes\n")
    assert list(tmp_path.iterdir()) == []


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    """Written once, then the same."""
    assert (
        "written        " + str(tmp_path / "etc/fabricpulse/mesh.yaml") in write(tmp_path, "--apply").output
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = write(tmp_path, "--apply", "--replace").output
    assert {line.split()[0] for line in again.splitlines()} == {"same"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_changed_files_are_kept_without_replace(tmp_path: Path) -> None:
    """Kept and reported, with a diff on request; replaced only with --replace, which keeps the former content."""
    mesh = tmp_path / "etc/fabricpulse/mesh.yaml"
    mesh.parent.mkdir(parents=True)
    mesh.write_text("host: mine\n")

    kept = write(tmp_path, "--apply", "--diff").output
    assert mesh.read_text() == "host: mine\n"
    assert f"differs, kept  {mesh}" in kept
    assert "    -host: mine\n" in kept
    assert kept.endswith("1 files differ and were kept: --diff shows how, --replace writes ours\n")

    assert f"would replace  {mesh}" in write(tmp_path, "--replace").output
    assert f"replaced       {mesh}" in write(tmp_path, "--apply", "--replace").output
    assert "key_file" in mesh.read_text()
    assert mesh.with_name("mesh.yaml.old").read_text() == "host: mine\n"


def test_what_was_changed_by_hand_outlives_each_replacement(tmp_path: Path) -> None:
    """Of several, each; and readers of a file with a password are those that it had."""
    mesh = tmp_path / "etc/fabricpulse/mesh.yaml"
    mesh.parent.mkdir(parents=True)
    for mine in ("first", "second", "second", "third"):
        mesh.write_text(f"host: {mine}\n")
        mesh.chmod(0o640)
        write(tmp_path, "--apply", "--replace")
        assert stat.S_IMODE(mesh.stat().st_mode) == 0o640
    kept = {path.name: path for path in mesh.parent.glob("mesh.yaml.old*")}
    assert {name: path.read_text() for name, path in kept.items()} == {
        "mesh.yaml.old": "host: first\n",
        "mesh.yaml.old2": "host: second\n",
        "mesh.yaml.old3": "host: third\n",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.values()} == {0o640}


def test_an_owner_that_cannot_be_kept_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a daemon could not read its settings any more. Also where the former content is in FILE.old already."""
    mesh = tmp_path / "etc/fabricpulse/mesh.yaml"
    mesh.parent.mkdir(parents=True)
    mesh.write_text("host: mine\n")
    mesh.with_name("mesh.yaml.old").write_text("host: mine\n")

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    options = ["files", "write", "host", "--root", str(tmp_path), "--apply", "--replace"]
    assert CliRunner().invoke(cli, options).exit_code == 1
    assert mesh.read_text() == "host: mine\n"


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """A file where a folder must be."""
    (tmp_path / "etc").write_text("")
    result = CliRunner().invoke(cli, ["files", "write", "host", "--root", str(tmp_path), "--apply"])
    assert str(result.exception).startswith(f"cannot read {tmp_path}/etc/")


def test_scrape_jobs_of_a_fleet(tmp_path: Path) -> None:
    """With the membership every exporter of every host is a target, with the names of this place."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("hosts: [{name: n1}, {name: n2}, {name: n3}]")
    words = ("show", "prometheus.yml", "--fleet", str(fleet), "--monitor", "mon.example", "--cluster", "a-1")
    config = yaml.safe_load(files(*words).output)
    targets = {
        job["job_name"]: [target for part in job["static_configs"] for target in part["targets"]]
        for job in config["scrape_configs"]
    }
    for job, port in (("mesh", 9610), ("nic", 9611), ("qp", 9612), ("clocksync", 9613)):
        assert targets[f"fabricpulse-{job}"] == [f"n{n}:{port}" for n in (1, 2, 3)]
    assert targets["fabricpulse-coordinator"] == ["mon.example:9614"]
    assert targets["fabricpulse-remediation"] == ["mon.example:9615", "n1:9616", "n2:9616", "n3:9616"]
    clusters = {
        rule["replacement"] for job in config["scrape_configs"] for rule in job["relabel_configs"][1:]
    }
    assert clusters == {"a-1"}


@pytest.mark.parametrize(
    ("monitor", "url"), [("10.0.0.9", "http://10.0.0.9:9614"), ("fd00::9", "http://[fd00::9]:9614")]
)
def test_settings_name_the_monitor(monitor: str, url: str) -> None:
    """A name, an IPv4 or an IPv6 address; all settings that name the monitor follow, comments too."""
    for file in catalogue():
        text = filled_in((data_folder() / file.source).read_text(), Values(monitor=monitor))
        assert "//monitor:" not in text
    sidecar = files("show", "clocksync-sidecar.yaml", "--monitor", monitor).output
    assert yaml.safe_load(sidecar)["coordinators"] == [url]


def test_list_and_path() -> None:
    """What a program and a person need to find a file; an unknown name is an error that says where the names are."""
    rows = json.loads(files("list", "--output", "json").output)
    assert {"name", "role", "target", "about"} == set(rows[0])
    assert "runbooks" in files("list").output
    assert (Path(files("path", "runbooks").output.strip()) / "FabricNicFlapping.md").is_file()
    assert "fabricpulse files list" in str(files("show", "nonesuch").exception)
