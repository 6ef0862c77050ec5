"""The parts of the RDMA lab that need no guest: archive, order of modules, kernel image, what is missing."""

import lzma
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabricpulse.core.errors import UserError
from fabricpulse.lab.channel import LabUnavailableError
from fabricpulse.lab.command import command
from fabricpulse.lab.rdma import fleet, guest, host_tsc, kernel
from fabricpulse.lab.rdma.initramfs import Entry, archive, modules_in_order

ELF = b"\x7fELF" + bytes(range(256)) * 40


def entries(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Name -> (mode, content) of a newc archive, by its specification: headers and data in multiples of four bytes."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        start = (at + 110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, data[start : start + size])
        at = (start + size + 3) // 4 * 4


def test_the_archive_is_newc() -> None:
    """Names and contents of all lengths come back; what follows is aligned."""
    files = [Entry("x" * n, 0o100644, bytes(n)) for n in range(1, 10)]
    assert entries(archive(files)) == {file.name: (file.mode, file.data) for file in files}


def test_modules_are_loaded_after_what_they_need(tmp_path: Path) -> None:
    """Each after its needs, none twice, none that is built in; an unknown one is named."""
    base = tmp_path / "lib/modules/7.2.0"
    base.mkdir(parents=True)
    (base / "modules.dep").write_text(
        "k/rdma_rxe.ko: k/ib_uverbs.ko k/ib_core.ko\nk/ib_uverbs.ko: k/ib_core.ko\nk/ib_core.ko:\n"
    )
    (base / "modules.builtin").write_text("kernel/veth.ko\n")
    order = modules_in_order(tmp_path, "7.2.0", ["ib-uverbs", "veth", "rdma_rxe"])
    assert [path.stem for path in order] == ["ib_core", "ib_uverbs", "rdma_rxe"]
    with pytest.raises(UserError, match="no module nonesuch"):
        modules_in_order(tmp_path, "7.2.0", ["nonesuch"])


@pytest.mark.parametrize("compress", [lzma.compress, lambda data: zlib.compress(data, wbits=31)])
def test_the_elf_kernel_inside_an_image(compress) -> None:
    """Found by the boot protocol's offsets, in each compression that distributions use."""
    payload = compress(ELF)
    image = bytearray(0x1000)
    image[0x1F1] = 3
    struct.pack_into("<II", image, 0x248, 100, len(payload))
    at = 4 * 512 + 100
    image[at:] = payload
    assert kernel.elf_of(bytes(image)) == ELF


def test_a_kernel_in_an_unknown_compression_is_one_sentence() -> None:
    """An image of tomorrow."""
    image = bytearray(0x2000)
    struct.pack_into("<II", image, 0x248, 0, 64)
    with pytest.raises(UserError, match="compressed in a way that is not known"):
        kernel.elf_of(bytes(image))


def test_the_newest_kernel_of_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, not by letters; without one the error says how to get it; the environment wins."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(kernel.KERNEL_ENV, raising=False)
    with pytest.raises(LabUnavailableError, match="fabricpulse lab rdma-kernel"):
        kernel.find_kernel()
    for release in ("7.2.9-amd64", "7.10.1-amd64", "7.9.30-amd64"):
        (kernel.cache_folder() / release).mkdir(parents=True)
        (kernel.cache_folder() / release / "vmlinux").touch()
    assert kernel.find_kernel().name == "7.10.1-amd64"
    monkeypatch.setenv(kernel.KERNEL_ENV, str(kernel.cache_folder() / "7.2.9-amd64"))
    assert kernel.find_kernel().name == "7.2.9-amd64"
    monkeypatch.setenv(kernel.KERNEL_ENV, str(tmp_path))
    with pytest.raises(LabUnavailableError, match="holds no vmlinux"):
        kernel.find_kernel()


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where QEMU is missing the lab says what to install."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if "qemu" in name else f"/bin/{name}")
    with pytest.raises(LabUnavailableError, match=r"install qemu-system-x86 \(Debian names\)"):
        guest.require_programs()


def test_a_host_that_the_rdma_lab_has_not() -> None:
    """It has two."""
    result = CliRunner().invoke(command, ["run", "--rdma", "--on", "h7", "true"])
    assert "the RDMA lab has no host 'h7'; it has h0 and h1" in str(result.exception)


def test_a_fleet_waits_for_the_kernel_to_call_its_links_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the carrier counts (LOWER_UP) but the state, which follows it; a link that stays behind is named."""
    line = "{}: {}@if2: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state {} mode DEFAULT\\    link/ether"
    answers = [("DOWN", "UP"), ("UP", "DOWN"), ("UP", "UP")]

    def show(*words: str) -> str:
        ctl, rail = answers.pop(0)
        return line.format(2, "ctl", ctl) + "\n" + line.format(3, "rail0", rail) + "\n"

    monkeypatch.setattr(fleet, "run", show)
    fleet.wait_running("h1")
    assert not answers
    monkeypatch.setattr(fleet, "_RUNNING_WITHIN_S", -1.0)
    answers = [("UP", "DOWN")]
    with pytest.raises(TimeoutError, match="h1: rail0@if2 not up"):
        fleet.wait_running("h1")


def test_a_kernel_that_was_unpacked_without_a_module_lacks_it(tmp_path: Path) -> None:
    """One of an earlier version of the lab: it is fetched again."""
    place = tmp_path / "lib" / "modules" / "7.2.9-amd64" / "kernel" / "drivers" / "net"
    place.mkdir(parents=True)
    assert kernel.has_module(tmp_path, "")
    assert not kernel.has_module(tmp_path, "igb")
    (place / "igb.ko").touch()
    assert kernel.has_module(tmp_path, "igb")


def test_the_rate_of_the_counter_that_a_guest_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the same, to a thousandth; none where the machine has no constant one, or forbids to read it so."""
    rates = [host_tsc.tsc_khz() for _ in range(2)]
    if None not in rates:
        assert rates[0] == pytest.approx(rates[1], rel=1e-3)

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("mmap.mmap", forbidden)
    assert host_tsc.tsc_khz() is None
    monkeypatch.setattr(Path, "read_text", lambda _: "flags : fpu tsc")
    assert host_tsc.tsc_khz() is None
