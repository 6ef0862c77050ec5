"""The fit of one window of trains, computed by clocksync/native/edge_fit, which documents the method. Pure."""

from fabricpulse.clocksync import _edge_fit
from fabricpulse.clocksync._edge_fit import Trains
from fabricpulse.clocksync.edge.estimator import (
    RANKS,
    EdgeFit,
    EstimatorParameters,
    Extremes,
    Floor,
    Prior,
    Quality,
)


def fit_edge(
    outbound: Trains, inbound: Trains, parameters: EstimatorParameters, prior: Prior | None = None
) -> EdgeFit | None:
    """Fits one window. outbound : us -> peer, inbound : peer -> us.

    Returns None while one direction has no packet after the warm-up of its trains, or there are too few of them and
    no prior.
    """
    found = _edge_fit.fit_edge(outbound, inbound, parameters, prior, RANKS)
    if found is None:
        return None
    *fields, quality, extremes, base_ns, floors = found
    offset_ns = found[2]
    fields += [Quality(quality), offset_ns, Extremes(*extremes), base_ns, tuple(map(Floor._make, floors))]
    return EdgeFit(*fields)
