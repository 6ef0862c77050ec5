"""`fabricpulse nic` as it is called: once, show, flags, mistakes; and the exposition as a whole."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.hostinfo.sys_tree import SysTree

from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.hostinfo.device_filter import DeviceFilter
from fabricpulse.nic import collectors
from fabricpulse.nic.command import command
from fabricpulse.nic.metrics import METRICS
from fabricpulse.nic.registry import registered

GOLDEN = Path(__file__).parents[2] / "fixtures/nic/metrics.txt"
PROMTOOL = shutil.which(
    "promtool", path=f"{os.environ['PATH']}:{Path(__file__).parents[3] / '.tools/usr/bin'}"
)


def invoke(tree, *arguments: str, **kwargs):
    return CliRunner().invoke(
        command, ["--path.sysfs", str(tree.root), *arguments], catch_exceptions=False, **kwargs
    )


def everything(tree: SysTree) -> None:
    """One device of each kind."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(8, up=False)
    tree.mlx5_ib(9)
    tree.bond()
    for driver in ("bnxt", "irdma", "rxe", "hns", "efa"):
        getattr(tree, driver)(1)


def stable(text: str) -> str:
    """The exposition without what differs from run to run."""
    text = re.sub(r"(collector_duration_seconds\{.*\}) \S+", r"\1 0", text)
    return re.sub(r"fabricpulse_build_info\{.*\}", "fabricpulse_build_info{}", text)


def test_golden(tree):
    """The whole exposition of one device of each kind. FABRICPULSE_UPDATE_GOLDEN=1 writes it anew, for review."""
    everything(tree)
    text = stable(invoke(tree, "--once").output)
    if os.environ.get("FABRICPULSE_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
def test_promtool_has_no_objection(tree):
    """`promtool check metrics` on everything that can be exported at a time."""
    everything(tree)
    body = invoke(tree, "--once", "--nic.raw-counters").stdout_bytes
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_sample_is_in_the_catalogue_with_its_labels(tree):
    everything(tree)
    labels = {spec.name: spec.labels for spec in METRICS}
    for line in invoke(tree, "--once", "--nic.raw-counters").output.splitlines():
        match = re.match(r"(fabricpulse_nic_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? ", line)
        if match and match[1] in labels:
            names = [name for name in re.findall(r'(\w+)="', match[2] or "") if name != "le"]
            assert tuple(names) == labels[match[1]], line


def test_names_of_the_mesh_exporter_are_left_to_it():
    names = {spec.name for spec in METRICS}
    assert "fabricpulse_nic_connected" not in names
    assert "fabricpulse_nic_disconnects_total" not in names


def test_once_replaces_the_textfile_whole(tree, tmp_path):
    """A new file is renamed over the old one: a reader never sees a half, and no temporary file stays."""
    tree.mlx5_roce(0)
    output = tmp_path / "out" / "nic.prom"
    output.parent.mkdir()
    output.write_text("old\n")
    before = output.stat().st_ino
    assert invoke(tree, "--once", "--output-file", str(output)).exit_code == 0
    assert output.stat().st_ino != before
    assert output.stat().st_mode & 0o777 == 0o644
    assert "fabricpulse_nic_port_state" in output.read_text()
    assert [path.name for path in output.parent.iterdir()] == ["nic.prom"]


def test_once_into_a_folder_that_is_not_there(tree, tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*/none/nic.prom: No such file or directory"):
        invoke(tree, "--once", "--output-file", str(tmp_path / "none/nic.prom"))


def test_once_into_a_full_device(tree):
    """An error of one sentence, as for a file."""
    command_line = [
        sys.executable,
        "-m",
        "fabricpulse.core.cli",
        "nic",
        "--path.sysfs",
        str(tree.root),
        "--once",
    ]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command_line, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(
        "fabricpulse: error: cannot write to standard output: No space left"
    )
    assert b"Traceback" not in done.stderr


def test_output_without_once(tree, tmp_path):
    """A daemon would write a file once and serve another truth ever after."""
    with pytest.raises(UserError, match="--output-file is for --once"):
        invoke(tree, "--output-file", str(tmp_path / "x.prom"))


def test_a_path_that_is_no_sysfs(tmp_path):
    with pytest.raises(UserError, match="is no sysfs"):
        CliRunner().invoke(command, ["--path.sysfs", str(tmp_path), "--once"], catch_exceptions=False)


def test_a_bad_regular_expression():
    """The message names the option and the expression."""
    with pytest.raises(ConfigError, match=r"--nic.device-exclude '\(' is not a regular expression"):
        DeviceFilter(exclude="(")


def test_collectors_are_switched_by_flags(tree):
    tree.mlx5_roce(0)
    text = invoke(tree, "--once", "--no-collector.pcie", "--no-collector.gid").output
    assert "fabricpulse_nic_pcie" not in text
    assert "fabricpulse_nic_gid" not in text
    assert 'collector="infiniband"' in text
    assert 'collector="pcie"' not in text


def test_flags_have_precedence_over_the_file(tree, tmp_path):
    tree.mlx5_roce(0)
    config = tmp_path / "nic.yaml"
    config.write_text("collectors: {pcie: false, gid: false}\ndevice: {exclude: 'mlx5_.*'}\n")
    text = invoke(tree, "--once", "--config", str(config)).output
    assert "mlx5_0" not in text
    text = invoke(
        tree, "--once", "--config", str(config), "--collector.pcie", "--nic.device-exclude", ""
    ).output
    assert "fabricpulse_nic_pcie_link_width_lanes" in text
    assert "fabricpulse_nic_gid" not in text


def test_an_unknown_collector_in_the_file(tree, tmp_path):
    config = tmp_path / "nic.yaml"
    config.write_text("collectors: {infinband: false}\n")
    with pytest.raises(ConfigError, match="unknown collector 'infinband'; known: bonding, dcb"):
        invoke(tree, "--once", "--config", str(config))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nccl: {address_range: 10.0.0.0/99}", "address_range"),
        ("device: {include: '('}", "device.include is not a regular expression"),
        ("nccl: {address_range: 10.0.0.1}", "has no prefix length"),
        ("nccl: {address_range: 'fd00::/8'}", "is not of address_family AF_INET"),
        ("read_timeout_s: 0", "read_timeout_s must be above 0"),
        ("expected: {rate_gbit_s: 400}", "expected.rate_gbit_s needs expected.ports"),
        ("expected: {ports: -1}", "must not be negative"),
        ("read_timeout_s: .nan", "read_timeout_s: nan is no number"),
        ("gid: {refresh_s: .inf}", "gid.refresh_s: inf is no number"),
        ("sample_cap: 0", "sample_cap must be at least 1"),
        ("flaps: {event_log_max_bytes: 1}", "event_log_max_bytes must be at least"),
    ],
)
def test_settings_that_cannot_be(tree, tmp_path, text, message):
    """Each is refused with its key and the reason, before anything is collected."""
    config = tmp_path / "nic.yaml"
    config.write_text(text + "\n")
    with pytest.raises(ConfigError, match=message):
        invoke(tree, "--once", "--config", str(config))


def test_show(tree):
    """One row a port with what a person asks first, and a word about the GID index."""
    everything(tree)
    (tree.port("mlx5_0") / "rate").write_text("fast\n")
    text = invoke(tree, "show").output
    row = next(line for line in text.splitlines() if "mlx5_0/1" in line)
    place = ["eth0np0", "mlx5_0/1", "active"]
    assert row.split() == [*place, "-", "1", "3", "32", "GT/s", "x16", "0", "11:00.0", "28.41.1000", "1"]
    assert any("mlx5_8/1" in line and "down" in line for line in text.splitlines())
    assert "GID index for NCCL: the same on all active RoCE ports" in text


def test_show_prints_text_of_a_device_as_it_is(tree):
    """What looks like markup of the table is the firmware's name all the same."""
    tree.mlx5_roce(0)
    tree.write(tree.ib("mlx5_0") / "fw_ver", "28[/bold][red]x")
    assert "28[/bold][red]x" in invoke(tree, "show").output


def test_show_names_a_device_that_has_no_ports(tree):
    """A NIC whose directory cannot be read at all is a row, not an absence."""
    tree.mlx5_roce(0)
    tree.mlx5_roce(1)
    path = tree.root / "class/infiniband/mlx5_1"
    path.unlink()
    path.symlink_to("mlx5_1")
    shutil.rmtree(tree.net("eth1np0"))
    (row,) = [line for line in invoke(tree, "show").output.splitlines() if line.strip().startswith("mlx5_1")]
    assert "unreadable" in row
    assert row.split()[-1] == "1"


def test_show_as_json(tree):
    """The same for a program: base units, None for what is not known, one object."""
    everything(tree)
    (tree.port("mlx5_0") / "rate").write_text("fast\n")
    found = json.loads(invoke(tree, "show", "--output", "json").stdout)
    port = next(row for row in found["rdma_ports"] if row["rdma_device"] == "mlx5_0")
    assert (port["device"], port["port"], port["state"]) == ("eth0np0", "1", "active")
    assert (port["rate_bytes_per_second"], port["unreadable_files"]) == (None, 1)
    assert port["pcie"]["width_lanes"] == 16
    assert port["gpus"] == ["0000:11:00.0"]
    assert found["nccl_gid_index_consistent"] is True
    plain = {row["device"] for row in found["links"]}
    assert not plain & {row["device"] for row in found["rdma_ports"]}


def test_a_collector_is_registered_by_being_in_the_folder():
    """Every module of `collectors` but those that they share has one, with its flag; metrics are declared once."""
    folder = Path(collectors.__path__[0])
    modules = {path.stem for path in folder.glob("*.py")} - {
        "__init__",
        "base",
        "link_base",
        "rdma_counter_files",
    }
    found = registered()
    assert modules == {entry.collector.__module__.rpartition(".")[2] for entry in found.values()}
    flags = CliRunner().invoke(command, ["--help"]).output
    assert all(f"--collector.{name}" in flags for name in found)
    names = [spec.name for spec in METRICS]
    assert len(set(names)) == len(names)
    assert all(entry.metrics for name, entry in found.items() if name != "queue_pairs")
