"""Boots a throw-away QEMU guest on this machine's own files and runs one command in it.

The guest's root is this machine's, read-only over 9p, under an overlay in its memory: paths are the same, a virtual
environment just works, and nothing that the guest writes reaches the host, except in the folders of `writable`. The
kernel is an ELF image entered by PVH, so that a guest is ready in 2 to 3 s without KVM. It ends with this process.

One virtual CPU with QEMU before 10: with two its TCG panics (Oops: int3) when the kernel patches a static branch.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fabricpulse.core.errors import UserError
from fabricpulse.lab import syscalls
from fabricpulse.lab.channel import LabUnavailableError
from fabricpulse.lab.rdma.host_tsc import tsc_khz
from fabricpulse.lab.rdma.initramfs import BOOT_MODULES, RDMA_MODULES, initramfs, modules_in_order

BOOT_TRIES = 3
# QEMU that runs several TCG threads without panics of the guest.
_SMP_QEMU = 10
_KERNEL_LINE = (
    "console=ttyS0 panic=-1 quiet loglevel=5 mitigations=off nokaslr audit=0 apparmor=0 no_timer_check tsc=reliable "
    "random.trust_cpu=on cryptomgr.notests rcupdate.rcu_expedited=1"
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INIT = Path(__file__).with_name("init.sh")


class GuestDiedError(UserError):
    """The guest ended without saying how its command ended; the message has the end of its console."""


@dataclass(frozen=True)
class Guest:
    """A kind of guest. kernel : folder of kernel.py. memory_mb : of the guest.

    environment : of commands, beside PATH, HOME and FABRICPULSE_RDMA_GUEST=1; nothing is inherited.
    modules, devices : loaded, and words of QEMU's command line, beyond those of every guest. cpus : 0 = as many
    as this QEMU runs without panics. kernel_options : beyond the usual.
    instruction_clock : the guest's clock advances by 1 ns with each of its instructions, while it has any to execute.
    What it measures is then work, and the same however busy this machine is; a second of it takes five to twenty.
    """

    kernel: Path
    memory_mb: int = 1024
    environment: Mapping[str, str] = field(default_factory=dict)
    instruction_clock: bool = False
    modules: Sequence[str] = RDMA_MODULES
    devices: Sequence[str] = ()
    cpus: int = 0
    kernel_options: str = ""

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        writable: Sequence[Path] = (),
        cwd: Path | None = None,
        timeout: float = 600.0,
        stdout: BinaryIO | None = None,
        stderr: BinaryIO | None = None,
    ) -> int:
        """Boots, runs `argv`, returns its exit status; its output goes to stdout and stderr as it comes.

        writable : folders in which the guest may write. Raises LabUnavailableError when something is missing here,
        GuestDiedError, UserError on a time-out.
        """
        programs = require_programs()
        for _ in range(BOOT_TRIES):
            status = self._run_once(programs, argv, writable, cwd or Path.cwd(), timeout, stdout, stderr)
            if status is not None:
                return status
        raise GuestDiedError(f"the guest has not booted in {BOOT_TRIES} tries; kernel: {self.kernel}")

    def _run_once(
        self,
        programs: "Programs",
        argv: Sequence[str | os.PathLike[str]],
        writable: Sequence[Path],
        cwd: Path,
        timeout: float,
        stdout: BinaryIO | None,
        stderr: BinaryIO | None,
    ) -> int | None:
        """The exit status; None when the guest ended before it was ready."""
        release = release_of(self.kernel)
        modules = modules_in_order(self.kernel, release, (*BOOT_MODULES, *self.modules))
        with tempfile.TemporaryDirectory(prefix="fabricpulse-guest-") as name:
            folder = Path(name)
            init = _INIT.read_text().replace("@EPOCH@", str(int(time.time())))
            init = init.replace("@MOUNTS@", self._mounts(writable, release))
            (folder / "initrd").write_bytes(
                initramfs(programs.busybox, modules, init, self._script(argv, cwd))
            )
            out_read, out_write = os.pipe()
            err_read, err_write = os.pipe()
            command = self._command(programs, folder, writable, out_write, err_write)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(out_write, err_write),
                preexec_fn=_prepare,  # noqa: PLW1509 - only system calls
            )
            os.close(out_write)
            os.close(err_write)
            pumps = [
                threading.Thread(target=_pump, args=pair, daemon=True)
                for pair in ((out_read, stdout or sys.stdout.buffer), (err_read, stderr or sys.stderr.buffer))
            ]
            for pump in pumps:
                pump.start()
            console = folder / "console"
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"the guest's {argv[0]} has not ended in {timeout:g} s; console: {_end_of(console)}"
                ) from None
            finally:
                process.kill()
                process.wait()
                for pump in pumps:
                    pump.join(5)
            try:
                return int((folder / "status").read_text())
            except (OSError, ValueError):
                if "guest: ready" not in _end_of(console, 1 << 20):
                    return None
                raise GuestDiedError(f"the guest died under {argv[0]}; console: {_end_of(console)}") from None

    def _command(
        self, programs: "Programs", folder: Path, writable: Sequence[Path], out: int, err: int
    ) -> list[str]:
        cpus = self.cpus or (2 if programs.qemu_version >= _SMP_QEMU else 1)
        files = [("out", f"/dev/fd/{out}"), ("err", f"/dev/fd/{err}"), ("rc", str(folder / "status"))]
        words = [
            str(programs.qemu),
            "-name",
            "rdma",
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ]
        words += [
            "-machine",
            "q35",
            "-accel",
            f"tcg,thread={'single' if self.instruction_clock else 'multi'},tb-size=256",
            "-cpu",
            "max",
            "-smp",
            str(cpus),
        ]
        if self.instruction_clock:
            words += ["-icount", "shift=0"]
        words += ["-m", str(self.memory_mb), "-kernel", str(self.kernel / "vmlinux")]
        khz = None if self.instruction_clock else tsc_khz()
        clock = f" tsc_early_khz={khz}" if khz else ""
        words += [
            *("-initrd", str(folder / "initrd")),
            *("-append", f"{_KERNEL_LINE}{clock} {self.kernel_options}"),
        ]
        words += ["-serial", f"file:{folder / 'console'}", "-device", "virtio-serial-pci"]
        words += ["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"]
        words += ["-device", "virtio-9p-pci,fsdev=root,mount_tag=rootfs"]
        for name, path in files:
            words += [
                "-chardev",
                f"file,id={name},path={path}",
                "-device",
                f"virtserialport,chardev={name},name={name}",
            ]
        words += ["-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"]
        for number, place in enumerate(writable):
            words += [
                "-fsdev",
                f"local,id=rw{number},path={place.resolve()},security_model=none,multidevs=remap",
            ]
            words += ["-device", f"virtio-9p-pci,fsdev=rw{number},mount_tag=rw{number}"]
        return [*words, *self.devices]

    def _mounts(self, writable: Sequence[Path], release: str) -> str:
        lines = []
        for number, place in enumerate(writable):
            inside = shlex.quote(f"/new{place.resolve()}")
            options = "trans=virtio,version=9p2000.L,cache=mmap,msize=512000"
            lines += [f"mkdir -p {inside}", f"mount -t 9p -o {options} rw{number} {inside}"]
        modules = shlex.quote(str(self.kernel.resolve() / "lib/modules" / release))
        # For modprobe in the guest.
        lines += ["mkdir -p /new/lib/modules", f"ln -sfn {modules} /new/lib/modules/{release}"]
        return "\n".join(lines)

    def _script(self, argv: Sequence[str | os.PathLike[str]], cwd: Path) -> str:
        environment = {
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "FABRICPULSE_RDMA_GUEST": "1",
            **self.environment,
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        lines += [f"cd {shlex.quote(str(cwd))} 2>/dev/null || cd /"]
        return "\n".join([*lines, f"exec {shlex.join(os.fspath(word) for word in argv)}"]) + "\n"


@dataclass(frozen=True)
class Programs:
    """What a guest needs of this machine."""

    qemu: Path
    qemu_version: int
    busybox: Path


def require_programs() -> Programs:
    """Finds QEMU and a static busybox. Raises LabUnavailableError that says what to install."""
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    found = {name: shutil.which(name, path=search) for name in ("qemu-system-x86_64", "busybox", "modprobe")}
    packages = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "modprobe": "kmod"}
    missing = [packages[name] for name, path in found.items() if path is None]
    if missing:
        raise LabUnavailableError(
            f"the RDMA lab needs {', '.join(packages)}: install {' '.join(missing)} (Debian names), or run "
            "scripts/system_packages.sh rdma as root"
        )
    qemu = Path(str(found["qemu-system-x86_64"]))
    done = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"version (\d+)", done.stdout)
    return Programs(qemu, int(version[1]) if version else 0, Path(str(found["busybox"])))


def release_of(kernel: Path) -> str:
    """The release of the kernel in a folder of kernel.py. Raises LabUnavailableError."""
    try:
        [release] = [path.name for path in (kernel / "lib" / "modules").iterdir()]
    except (OSError, ValueError) as error:
        raise LabUnavailableError(
            f"{kernel} holds no kernel of the RDMA lab: `fabricpulse lab rdma-kernel` fetches one"
        ) from error
    return release


def _prepare() -> None:
    syscalls.die_with_parent(signal.SIGKILL)
    # A whole machine is one thread here: beside a lab of a hundred processes it would get a tenth of a core, and what
    # times out by its own clock, as queue pairs do, would time out for nothing. (-10 takes a core from all others.)
    with suppress(OSError):
        os.nice(-5)


def _pump(source: int, target: BinaryIO) -> None:
    # Not by giving QEMU the descriptor itself: it would open the file anew and write from its beginning.
    with os.fdopen(source, "rb", buffering=0) as reader:
        while data := reader.read(65_536):
            target.write(data)
            target.flush()


def _end_of(path: Path, characters: int = 1500) -> str:
    try:
        return path.read_text(errors="replace")[-characters:]
    except OSError:
        return ""
