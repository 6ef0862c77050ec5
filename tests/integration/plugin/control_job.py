"""A process with the plugin that needs no NIC, for the tests of its control socket."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fabricpulse.plugin.locate import library


@contextmanager
def control_job(program: Path, plugin: Path | None = None, **env: str) -> Iterator[Path]:
    """Runs tests/native/hosts/profiler.cc with the plugin (default: the installed one); its control socket."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # as /run/fabricpulse; pytest's own folders are for its user alone
        process = subprocess.Popen(
            [program, plugin or library(), "v7", "1", "30"],
            env={"FABRICPULSE_RUN_DIR": folder, "FABRICPULSE_NICS": "none-such", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("mask ")
            (path,) = Path(folder, "plugin").glob("*.sock")
            yield path
        finally:
            process.kill()
            process.wait(60)
            process.stdout.close()
