"""Lines of the kernel log about a NIC."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from tests.unit.nic.conftest import Samples

from fabricpulse.hostinfo.kernel_log import KINDS, classify, parse_record
from fabricpulse.hostinfo.kmsg import KmsgReader
from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.nic.collectors.kernel_log import KernelLogCollector
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter

MLX5 = "mlx5_core 0000:10:00.0"
BNXT = "bnxt_en 0000:21:00.0 ens0f0np0"
WATCHDOG = "eth0np0 (mlx5_core): transmit queue 12 timed out"


@pytest.mark.parametrize(
    ("text", "kind", "pci", "netdev"),
    [
        (f"{MLX5} eth0np0: Link down", "link_down", "0000:10:00.0", "eth0np0"),
        (f"{MLX5} eth0np0: Link up", "link_up", "0000:10:00.0", "eth0np0"),
        (
            f"{MLX5}: Port module event[error]: module 0, Cable error, Bus stuck",
            "module_error",
            "0000:10:00.0",
            "",
        ),
        (f"{MLX5}: Port module event: module 1, Cable unplugged", "module_unplugged", "0000:10:00.0", ""),
        (
            f"{MLX5}: Port module event[error]: module 0, High Temperature",
            "high_temperature",
            "0000:10:00.0",
            "",
        ),
        (
            f"{MLX5}: mlx5_cmd_fw_mon: ACCESS_REG(0x805) op_mod(0x1) failed",
            "access_register",
            "0000:10:00.0",
            "",
        ),
        (
            f"{MLX5}: wait_func: ACCESS_REG(0x805) timeout. Will cause a leak",
            "command_timeout",
            "0000:10:00.0",
            "",
        ),
        (f"{MLX5}: poll_health: device's health compromised", "health", "0000:10:00.0", ""),
        (f"{MLX5}: Detected insufficient power on the slot (27W).", "insufficient_power", "0000:10:00.0", ""),
        (f"NETDEV WATCHDOG: {WATCHDOG}", "transmit_timeout", "", "eth0np0"),
        (f"NETDEV WATCHDOG: CPU: 3: {WATCHDOG} 5376 ms", "transmit_timeout", "", "eth0np0"),
        (f"{BNXT}: NIC Link is Down", "link_down", "0000:21:00.0", "ens0f0np0"),
        (f"{BNXT}: NIC Link is Up, 400000 Mbps full duplex", "link_up", "0000:21:00.0", "ens0f0np0"),
        (
            f"{BNXT}: Error (timeout: 500015) msg {{0x23 0xb6}} len:0",
            "command_timeout",
            "0000:21:00.0",
            "ens0f0np0",
        ),
        (
            "bnxt_en 0000:21:00.0: cmdq[0x1b]=0x3 timedout (100000)msec",
            "command_timeout",
            "0000:21:00.0",
            "",
        ),
        ("pcieport 0000:10:01.1: AER: Corrected error received: 0000:10:00.0", "pcie", "0000:10:00.0", ""),
        ("mlx5_0: dump_cqe:272:(pid 4711): dump error cqe", "completion_error", "", ""),
    ],
)
def test_kernel_lines(text, kind, pci, netdev):
    """What drivers print about a NIC is recognized, with its kind and the device that it is about."""
    found = classify(text)
    assert found is not None
    assert (found.kind, found.pci_address, found.netdev) == (kind, pci, netdev)


@pytest.mark.parametrize(
    "text",
    [
        "usb 1-1: link is down",
        f"{MLX5}: firmware version: 28.41.1000",
        "device eth0 entered promiscuous mode",
        "",
    ],
)
def test_kernel_lines_about_something_else(text):
    assert classify(text) is None


def test_kernel_records():
    """The kernel's own lines; not those that user space has written, whose facility is never 0."""
    line = b"4,1234,99887766,-;mlx5_core 0000:10:00.0: x\n SUBSYSTEM=pci\n"
    assert parse_record(line) == "mlx5_core 0000:10:00.0: x"
    assert parse_record(b"12" + line[1:]) is None
    assert parse_record(b"garbage") is None
    assert parse_record(b";;;") is None
    assert parse_record(b"4,1,2,-;bad \xff\x00\n") == "bad \N{REPLACEMENT CHARACTER}"


async def test_kernel_log_counts_only_known_nics(tree, tmp_path):
    """Records as /dev/kmsg gives them, one a read: counted by device and kind, and written to the event log."""
    tree.mlx5_roce(0, gid_slots=4)
    exporter = NicExporter(NicConfig(), HostSources(tree.root, link_events=False), run_dir=tmp_path)
    await exporter.start()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    collector = KernelLogCollector(exporter.flaps, Path("/nowhere"))
    collector.start(exporter.inventory)
    asyncio.get_running_loop().add_reader(here, lambda: collector._record(here.recv(8192)))
    try:
        for address in ("0000:10:00.0", "0000:10:00.0", "0000:ff:00.0"):
            there.send(
                f"3,1,2,-;mlx5_core {address}: Port module event: module 0, Cable unplugged\n".encode()
            )
        there.send(b"3,1,2,-;mlx5_core 0000:10:00.0 eth0np0: Link down\n")
        await until(lambda: exporter.flaps.events["kernel_log"] == 3)
        exporter.collectors.append(collector)
        got = Samples.parse(await exporter.scrape())
    finally:
        asyncio.get_running_loop().remove_reader(here)
        here.close()
        there.close()
        exporter.stop()
    messages = "fabricpulse_nic_kernel_messages_total"
    assert got.get_one(messages, device="eth0np0", kind="module_unplugged") == 2
    assert got.get_one(messages, device="eth0np0", kind="link_down") == 1
    # The other kinds are there from 0 on, for devices that are known.
    counted = {key: value for key, value in got.items() if key[0] == messages}
    assert sum(counted.values()) == 3
    assert len(counted) == len(KINDS)
    assert (tmp_path / "nic-events.jsonl").read_text().count("Cable unplugged") == 2


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="hardware: no /dev/kmsg")
async def test_the_real_kernel_log():
    """What is written to /dev/kmsg now is read, older lines are not; and none is taken for the kernel's own."""
    records: list[bytes] = []
    Path("/dev/kmsg").write_text("<4>fabricpulse test: before\n")
    reader = KmsgReader(Path("/dev/kmsg"), records.append, lambda: None)
    reader.start()
    try:
        Path("/dev/kmsg").write_text("<4>fabricpulse test: after\n")
        await until(lambda: any(b"fabricpulse test: after" in record for record in records))
    finally:
        reader.stop()
    written = [record for record in records if b"fabricpulse test" in record]
    assert not any(b"before" in record for record in written)
    assert {parse_record(record) for record in written} == {None}
