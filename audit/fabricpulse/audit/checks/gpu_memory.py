"""Memory of GPUs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.nvml import LOST, error_text
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="gpu-memory",
    category="node",
    severity="error",
    title="Memory of GPUs",
    proves=(
        "Each NVIDIA GPU on the PCI bus answers, has had no memory error that ECC could not correct since its "
        "driver was loaded, and has no row of memory that waits to be replaced or cannot be."
    ),
    how="NVML (libnvidia-ml.so.1): nvmlDeviceGetTotalEccErrors, nvmlDeviceGetRemappedRows. Without NVML it is unknown.",
    fix=(
        "A pending row: reset the GPU or restart the host. No spare row left, or errors again after that: change the "
        "GPU. A GPU that does not answer: look for Xid 79 in the kernel log, restart the host."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    expected = [gpu for gpu in host.gpus if gpu.vendor == "nvidia" and gpu.driver == "nvidia"]
    if not expected:
        yield not_applicable("no GPU with NVIDIA's driver")
        return
    answer = host.nvml_answer
    if answer.gpus is None:
        yield unknown(answer.reason)
        return
    shown = host.names("/proc/driver/nvidia/gpus")
    known = {gpu.address: gpu for gpu in answer.gpus}
    for own in expected:
        gpu = known.get(own.address)
        if gpu is None and shown and own.address not in shown:
            yield unknown(
                "the driver does not show it here, as in a container that has other GPUs", own.address
            )
        elif gpu is None and answer.refused:
            yield unknown("NVML gives some GPUs out to others only: no permission", own.address)
        elif gpu is None:
            yield failed("NVML does not list it", own.address)
        elif gpu.error == LOST:
            yield failed("NVML has lost it", own.address)
        elif gpu.uncorrected:
            yield failed(
                f"{gpu.uncorrected} errors that could not be corrected",
                own.address,
                uncorrected=gpu.uncorrected,
            )
        elif gpu.remap_failed:
            yield failed("a row of memory is bad and no spare one is left", own.address, remap_failed=True)
        elif gpu.remap_pending:
            yield failed("a row of memory waits to be replaced", own.address, remap_pending=True)
        elif gpu.error:
            yield unknown(f"NVML does not tell all of its memory: {error_text(gpu.error)}", own.address)
        elif gpu.uncorrected is None and gpu.remap_failed is None:
            yield unknown("it counts no errors of its memory (ECC is off)", own.address)
        else:
            yield passed("no error", own.address)
