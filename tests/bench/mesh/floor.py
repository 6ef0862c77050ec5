"""The floor of the engine's CPU: its system calls without the engine (bare_probe_loop.c), in the same lab.

What it uses is the kernel's: wake-ups, the UDP send path, the receive path, TX stamps, the steering of the wire. What
the engine uses above it is the engine's own: MACs, tables, health, samples, the pause between the packets of a train.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from fabricpulse.lab import Lab, LabProcess

SOURCE = Path(__file__).parents[2] / "native" / "probes" / "bare_probe_loop.c"
PLAYING_LONGER_S = 0.4  # the peers still send when the measured turn ends


@dataclass(frozen=True)
class BareLoop:
    """The loop of h0, which is measured, and the one on h1 that plays its peers. Both sleep between measurements."""

    process: LabProcess
    playing: LabProcess
    requests: TextIO
    playing_requests: TextIO
    answers: TextIO

    def measure(self, seconds: float) -> dict[str, Any]:
        """What the loop did in `seconds`; the same keys as the engine's, as far as it has them."""
        for requests, length in (
            (self.playing_requests, seconds + PLAYING_LONGER_S),
            (self.requests, seconds),
        ):
            requests.write(f"{length}\n")
            requests.flush()
        got: dict[str, Any] = json.loads(self.answers.readline())
        return got


@contextmanager
def bare_loop(lab: Lab, addresses: list[list[str]], trains_per_s: float) -> Iterator[BareLoop]:
    """Builds and starts both loops. addresses : of the peers, by rail."""
    program = lab.directory / "bare_probe_loop"
    subprocess.run(["cc", "-O2", SOURCE, "-o", program], check=True)
    own: list[str] = []
    peers: list[str] = []
    for nic, found in zip(lab.host("h0").nics, addresses, strict=True):
        for address in found:
            own += [nic.device, nic.address, address]
            peers += ["-", address, nic.address]
    own_in, requests = os.pipe()
    peers_in, playing_requests = os.pipe()
    answers, own_out = os.pipe()
    command: list[str | os.PathLike[str]] = [program, str(trains_per_s)]
    process = lab.popen("h0", [*command, *own], stdin=own_in, stdout=own_out)
    playing = lab.popen("h1", [*command, *peers], stdin=peers_in)
    for end in (own_in, peers_in, own_out):
        os.close(end)
    with (
        os.fdopen(requests, "w") as writing,
        os.fdopen(playing_requests, "w") as writing_to_peers,
        os.fdopen(answers) as reading,
    ):
        yield BareLoop(process, playing, writing, writing_to_peers, reading)
    process.wait(10)
    playing.wait(10)
