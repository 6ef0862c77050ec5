"""The receiver behind a real Alertmanager: of what that does, how much it makes the right thing of."""

import re
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.rows import Rows
from tests.fixtures.remediation.alertmanager_behaviours import BEHAVIOURS, Scene

from fabricpulse.lab.tools import command_line, find_tools


def alertmanager_behaviours(rows: Rows) -> None:
    """Of the release that FABRICPULSE_TOOLS names, or that is on this machine."""
    program = find_tools().alertmanager
    said = subprocess.run(
        [*map(str, command_line(program)), "--version"], capture_output=True, text=True, check=True
    )
    found = re.search(r"version (\S+?)[ ,]", said.stdout + said.stderr)
    begun, broken = time.monotonic(), {}
    for behaviour in BEHAVIOURS:
        with tempfile.TemporaryDirectory(prefix="bench-alertmanager-") as folder:
            scene = Scene(program, Path(folder))
            try:
                behaviour(scene)
            except (AssertionError, OSError) as error:
                broken[behaviour.__name__] = f"{error}"[:200] or type(error).__name__
            finally:
                scene.close()
    rows.report(
        f"Alertmanager {found[1] if found else 'of unknown version'}",
        "alertmanager_behaviours",
        len(BEHAVIOURS) - len(broken),
        "1",
        f"== {len(BEHAVIOURS)}",
        broken=broken,
        took_s=round(time.monotonic() - begun, 1),
    )
