"""Settings of the mesh exporter that contradict one another are refused with what to do."""

import pytest

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import UserError
from fabricpulse.mesh.config import MeshConfig


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("{cross_peers: 11, peers: 10}", "cross_peers must not be above peers"),
        ("{down_after_s: 1, trains_per_s: 2}", "down_after_s must be at least six train periods"),
        ("{sweep: 1}", "sweep must be 0 or at least 2: with 1 no packet takes the main path"),
    ],
)
def test_contradictions_are_refused(tmp_path, probe: str, said: str) -> None:
    """Evidence of a main path without packets would be refused by the coordinator, again and again."""
    path = tmp_path / "mesh.yaml"
    path.write_text(f"probe: {probe}\n")
    with pytest.raises(UserError, match=said):
        load_config(path, MeshConfig)
