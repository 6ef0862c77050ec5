"""The series on which causes are played are those that the exporters export: else what is proved on them is nothing."""

import pytest
from tests.fixtures.why.causes import CAUSES
from tests.fixtures.why.series import series
from tests.fixtures.why.world import new_world

from fabricpulse.core.metrics.catalogue import load_catalogue

CATALOGUE = load_catalogue()
# What Prometheus adds.
ADDED = {"instance", "le", "quantile"}


@pytest.mark.parametrize("cause", CAUSES)
def test_names_and_labels_are_exported(cause: str) -> None:
    """Each series has a name and no labels but those of the catalogue; dcgm-exporter's and recorded ones apart."""
    world = new_world(cause, 1, "ring", 4)
    CAUSES[cause](world)
    found = {
        (s.name, frozenset(s.labels) - ADDED) for s in series(world) if s.name.startswith("fabricpulse_")
    }
    assert len(found) > 20
    for name, labels in found:
        spec = CATALOGUE.get(name) or CATALOGUE.get(name.removesuffix("_bucket"))
        assert spec is not None, name
        assert labels <= set(spec.labels), name
