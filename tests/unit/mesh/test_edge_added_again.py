"""An edge that one end removes and adds again, as a membership file that changes twice makes it, works at once."""

import time

from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import POLL_S, Patience

from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.snapshot import EdgeState, parse_snapshot


def test_a_peer_that_did_not_notice_takes_no_train_for_a_replay() -> None:
    """It knows the numbers that it has had; that would last for as long as the edge had been up."""
    port = reserved_port()
    nics = [[("lo", "rail0", f"127.0.0.{2 + k}")] for k in range(2)]
    edges = [[(0, f"h{1 - k}", "lo", "rail0", f"127.0.0.{3 - k}")] for k in range(2)]
    engines = []
    for k in range(2):
        settings = native.Settings()
        settings.host, settings.port, settings.paths, settings.sweep = f"h{k}", port, 1, 0
        settings.rate, settings.bind_device = 500, False
        engines.append(native.ProbeEngine(settings))
        engines[k].set_keys([bytes(16)])
        engines[k].configure(nics[k], edges[k])

    def edge(k: int) -> EdgeState:
        (state,) = parse_snapshot(engines[k].snapshot()).edges
        return state

    def wait(k: int, packets: int) -> None:
        patience, before = Patience(20), edge(k).received
        while edge(k).received < before + packets:
            assert patience.left(), (edge(0), edge(1))
            time.sleep(POLL_S)  # a counter of an engine's thread grows

    for engine in engines:
        engine.start()
    try:
        wait(0, 3_000)
        wait(1, 300)
        sent = edge(0).sent
        engines[0].configure(nics[0], [])
        engines[0].configure(nics[0], edges[0])
        wait(1, 30)
        wait(0, 30)
        assert edge(0).sent < sent / 3
        assert edge(1).lost < 100
    finally:
        for engine in engines:
            engine.stop()
