"""The GPUs of this host by NVIDIA's management library (NVML, libnvidia-ml.so.1).

ABI: nvml.h of the driver, functions with the suffixes that have not changed since R450 (nvmlInit_v2,
nvmlDeviceGetPciInfo_v3); nvmlDeviceGetComputeRunningProcesses_v3 is there since R510, before that it is unknown how
many processes compute. The library is a stranger's: it is loaded by a process of its own, `ask`, which a driver that
hangs or crashes takes with it, and not the agent.
"""

import ctypes
import subprocess
import sys
from contextlib import suppress

import msgspec

LIBRARY = "libnvidia-ml.so.1"
# More than any host has; what a broken library says must not become more.
MOST_GPUS = 64
_MOST_BYTES = 1 << 16
_REAP_S = 1.0
_SUCCESS, _NOT_SUPPORTED, NO_PERMISSION, _TOO_SMALL, LOST = 0, 3, 4, 7, 15
_UNCORRECTED, _VOLATILE = 1, 0


class NvmlGpu(msgspec.Struct, frozen=True):
    """One GPU; None: it does not tell, or has no such thing.

    address : as in /sys/bus/pci/devices. uncorrected : ECC errors that could not be corrected since the driver was
    loaded. remap_pending : rows of memory are replaced at the next reset. remap_failed : there is no spare row left.
    processes : that compute on it, None where that cannot be read. error : of NVML, where something could not be read
    that the GPU may well have; 0 for none.
    """

    address: str
    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    error: int = 0
    processes: int | None = None


class NvmlAnswer(msgspec.Struct, frozen=True):
    """gpus : None where NVML could not be asked; `reason` says why then. refused : how many GPUs this user may not ask,
    which ones is not reported."""

    gpus: tuple[NvmlGpu, ...] | None = None
    reason: str = ""
    refused: int = 0


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


def ask(library: str = LIBRARY, timeout_s: float = 3.0) -> NvmlAnswer:
    """NVML's answer by a child process; raises nothing. A child that does not end in time is killed, and
    left behind where even that does not end it."""
    command = [sys.executable, "-I", "-m", "fabricpulse.audit.host.nvml", library]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        return NvmlAnswer(reason=f"cannot start a process: {error.strerror}")
    try:
        said = child.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # in the kernel it may not be able to end
            child.wait(_REAP_S)
        if child.stdout is not None:
            child.stdout.close()
        return NvmlAnswer(reason=f"NVML has not answered within {timeout_s:g} s")
    if child.returncode < 0:
        return NvmlAnswer(reason=f"NVML has crashed with signal {-child.returncode}")
    try:
        return msgspec.json.decode(said[:_MOST_BYTES], type=NvmlAnswer)
    except (msgspec.DecodeError, ValueError):
        return NvmlAnswer(reason="NVML gave no answer")


def read(library: str = LIBRARY) -> NvmlAnswer:
    """As `ask`, in this process."""
    try:
        nvml = ctypes.CDLL(library)
        code = nvml.nvmlInit_v2()
    except (OSError, AttributeError):
        return NvmlAnswer(reason=f"there is no {LIBRARY}")
    if code != _SUCCESS:
        return NvmlAnswer(reason=f"nvmlInit_v2 fails with {error_text(code)}")
    try:
        count = ctypes.c_uint()
        code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if code != _SUCCESS:
            return NvmlAnswer(reason=f"nvmlDeviceGetCount_v2 fails with {error_text(code)}")
        answers = [_gpu(nvml, index) for index in range(min(count.value, MOST_GPUS))]
        gpus = tuple(gpu for gpu in answers if isinstance(gpu, NvmlGpu))
        return NvmlAnswer(gpus, refused=answers.count(NO_PERMISSION))
    except AttributeError as error:
        return NvmlAnswer(reason=f"an NVML without a function that is needed: {error}")
    finally:
        with suppress(AttributeError):
            nvml.nvmlShutdown()


def error_text(code: int) -> str:
    """For people."""
    return f"error {code} (no permission)" if code == NO_PERMISSION else f"error {code}"


def _gpu(nvml: ctypes.CDLL, index: int) -> NvmlGpu | int:
    """NVML's error where it does not give the GPU out: lost ones are among these."""
    handle, pci = ctypes.c_void_p(), _PciInfo()
    code = int(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
    if code != _SUCCESS:
        return code
    code = int(nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)))
    if code != _SUCCESS:
        return code
    errors = ctypes.c_ulonglong()
    counted = int(nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE, ctypes.byref(errors)))
    corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
    remapped = _NOT_SUPPORTED
    with suppress(AttributeError):  # before R450, and then for no GPU of Ampere or later
        places = [ctypes.byref(value) for value in (corrected, uncorrected, pending, failed)]
        remapped = int(nvml.nvmlDeviceGetRemappedRows(handle, *places))
    processes, computing = ctypes.c_uint(), _NOT_SUPPORTED
    with suppress(AttributeError):  # no room for any: it says how many there are
        computing = int(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(processes), None))
    unread = [code for code in (counted, remapped) if code not in (_SUCCESS, _NOT_SUPPORTED)]
    return NvmlGpu(
        f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        errors.value if counted == _SUCCESS else None,
        bool(pending.value) if remapped == _SUCCESS else None,
        bool(failed.value) if remapped == _SUCCESS else None,
        unread[0] if unread else 0,
        processes.value if computing in (_SUCCESS, _TOO_SMALL) else None,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(read(sys.argv[1])))
