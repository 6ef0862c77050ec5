"""The guest's kernel: Debian's own package, authenticated by apt, unpacked into a cache; nothing is installed.

Theory of operation. The newest kernel with rdma_rxe that works in network namespaces is in Debian's testing suite, of
which this machine is hardly one. So apt gets a state of its own: a source list with one suite of the mirror that this
machine already uses, signed by the archive keyring that this machine already trusts. A suite moves, and a version that
was there last week is gone: what has been unpacked once is kept and used again, also without a network.
"""

import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.lab.channel import LabUnavailableError

KERNEL_ENV = "FABRICPULSE_RDMA_KERNEL"
SUITE = "forky"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The first kernel in which rdma_rxe passes data in a network namespace.
FIRST_WITH_NAMESPACES = (7, 0)

# What a lab may load, with what that needs; the rest is nine tenths of the size.
_KEPT = re.compile(
    r"kernel/(arch/x86/crypto|crypto|lib|fs/(9p|overlayfs|configfs)|net/(9p|sched|core|ipv4|ipv6|bridge|8021q|netfilter"
    r"|packet|unix)|drivers/(virtio|infiniband/(core|sw)|net/(veth|dummy|vrf|ifb|ethernet/intel/igb)|char/(virtio_console|hw_random"
    r"/virtio-rng)))"
)


def cache_folder() -> Path:
    """Where unpacked kernels are kept, one folder a release."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fabricpulse" / "rdma-kernel"


def find_kernel() -> Path:
    """The newest kernel that is unpacked here, or the one that FABRICPULSE_RDMA_KERNEL names.

    Raises LabUnavailableError that says how to get one.
    """
    named = os.environ.get(KERNEL_ENV)
    if named:
        if not (Path(named) / "vmlinux").is_file():
            raise LabUnavailableError(f"{KERNEL_ENV} names {named}, which holds no vmlinux")
        return Path(named)
    found = [path.parent for path in cache_folder().glob("*/vmlinux")]
    if not found:
        raise LabUnavailableError(
            f"no kernel for the RDMA lab in {cache_folder()}: `fabricpulse lab rdma-kernel` fetches one from Debian"
        )
    return max(found, key=lambda path: _numbers(path.name))


def has_module(kernel: Path, module: str) -> bool:
    """Whether an unpacked kernel has a module; one that was unpacked earlier may lack it. "" = any has it."""
    return not module or any(kernel.glob(f"lib/modules/*/**/{module}.ko*"))


def fetch_kernel(suite: str = SUITE, module: str = "") -> Path:
    """Fetches the newest kernel of a Debian suite and unpacks it, unless it is here already, with `module`; its folder.

    Raises UserError when this machine is no Debian, its mirror is not reached or the suite's kernel is too old.
    """
    if not KEYRING.exists() or shutil.which("apt-get") is None:
        raise UserError(
            f"a kernel for the RDMA lab comes from Debian's packages: no apt-get, or no {KEYRING}, here"
        )
    with tempfile.TemporaryDirectory(prefix="fabricpulse-kernel-") as name:
        work = Path(name)
        work.chmod(0o755)
        apt = SuiteOfDebian(work, suite)
        image = apt.newest_image()
        release = image.removeprefix("linux-image-")
        if _numbers(release)[:2] < FIRST_WITH_NAMESPACES:
            raise UserError(f"{suite} has Linux {release}: rdma_rxe works in network namespaces from 7.0 on")
        target = cache_folder() / release
        if not (target / "vmlinux").is_file() or not has_module(target, module):
            # From 7.0 on linux-image is empty: kernel, modules and what is built in are in packages of their own.
            parts = [f"linux-{part}-{release}" for part in ("binary", "modules", "base")]
            apt.unpack([image, *parts], work / "root")
            _assemble(work / "root", release, work / "kernel")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(work / "kernel", target, symlinks=True)
        return target


class SuiteOfDebian:
    """apt with one suite and a state of its own."""

    def __init__(self, work: Path, suite: str) -> None:
        self._work = work
        for folder in ("lists/partial", "cache/archives/partial", "debs"):
            (work / folder).mkdir(parents=True)
        (work / "status").touch()
        (work / "suite.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n")
        settings = {
            "Dir::Etc::SourceList": work / "suite.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": work / "lists",
            "Dir::Cache": work / "cache",
            "Dir::State::Status": work / "status",
            "Acquire::Languages": "none",
            # As root apt would drop to its own user, who may not write here.
            "APT::Sandbox::User": "root",
        }
        self._options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        self._run("apt-get", "-qq", "update")

    def newest_image(self) -> str:
        names = self._run("apt-cache", "pkgnames", "linux-image-").split()
        images = [name for name in names if re.fullmatch(r"linux-image-\d+\.\d+\.[\w.+~]*-amd64", name)]
        images = [name for name in images if not re.search(r"-(rt|cloud)-", name)]
        if not images:
            raise UserError("the suite has no kernel image for amd64")
        return max(images, key=_numbers)

    def unpack(self, packages: list[str], target: Path) -> None:
        known = [name for name in packages if self._run("apt-cache", "pkgnames", name).split().count(name)]
        self._run("apt-get", "-qq", "download", *known, cwd=self._work / "debs")
        for package in (self._work / "debs").glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, target], check=True)

    def _run(self, program: str, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [program, *self._options, *words], capture_output=True, text=True, check=False, cwd=cwd
        )
        if done.returncode != 0:
            raise UserError(f"{program} {words[-1]} failed: {' '.join(done.stderr.split())[-400:]}")
        return done.stdout


def _mirror() -> str:
    """The mirror of Debian that this machine uses most."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.split() if re.search(r"/debian/?$", line)]
    if not found:
        raise UserError(
            "no Debian mirror in this machine's package sources: the RDMA lab's kernel comes from Debian"
        )
    return max(set(found), key=found.count)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


def _assemble(root: Path, release: str, target: Path) -> None:
    """`target`/vmlinux and lib/modules/<release> of unpacked packages."""
    modules = target / "lib" / "modules" / release
    modules.parent.mkdir(parents=True)
    [image] = root.glob("**/vmlinuz*")
    (target / "vmlinux").write_bytes(elf_of(image.read_bytes()))
    [unpacked] = [path for path in root.glob(f"**/lib/modules/{release}") if path.is_dir()]
    shutil.move(unpacked, modules)
    depmod = shutil.which("depmod", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if depmod is None:
        raise UserError("depmod is not on PATH: install kmod")
    index = [depmod, "-b", str(target), release]
    subprocess.run(index, check=True, capture_output=True)
    _slim(modules)
    subprocess.run(index, check=True, capture_output=True)


def _slim(modules: Path) -> None:
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    kept = {path for path in needs if _KEPT.match(path)}
    kept |= {other for path in kept for other in needs[path]}
    for path in needs.keys() - kept:
        (modules / path).unlink()
    for packed in modules.rglob("*.ko.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
        packed.unlink()
    for name in ("build", "source", "vmlinuz"):
        (modules / name).unlink(missing_ok=True)


def elf_of(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage: entered by PVH, the guest does not unpack itself (1 to 3 s without KVM).

    Linux/x86 boot protocol: setup_sects at 0x1f1, payload_offset and payload_length at 0x248. Raises UserError for a
    compression that is not known.
    """
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = ((image[0x1F1] or 4) + 1) * 512 + offset
    payload = image[start : start + length]
    if payload[:6] == b"\xfd7zXZ\0":
        elf = lzma.decompress(payload)
    elif payload[:4] == b"\x28\xb5\x2f\xfd":
        # The last four bytes are the kernel's own note of the size.
        elf = subprocess.run(["zstd", "-dqc"], input=payload[:-4], capture_output=True, check=True).stdout
    elif payload[:2] == b"\x1f\x8b":
        elf = zlib.decompress(payload, wbits=31)
    else:
        raise UserError(
            f"the kernel image is compressed in a way that is not known here: {payload[:6].hex()}"
        )
    if elf[:4] != b"\x7fELF":
        raise UserError("the kernel image holds no ELF kernel")
    return elf


def main() -> int:
    """`python -m fabricpulse.lab.rdma.kernel`: prints the folder of the kernel."""
    try:
        sys.stdout.write(f"{fetch_kernel()}\n")
    except UserError as error:
        sys.stderr.write(f"rdma kernel: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
