"""A graph in the form that is better for its size: of a few dozen hosts whole matrices, of more sparse ones."""

from fabricpulse.clocksync.solve.graph import Graph, Nodes

# Up to so many hosts whole matrices are faster; and their products are too small for BLAS to wake its threads.
FEW = 64


def graph_of(n: int, i: Nodes, j: Nodes) -> Graph:
    """The form that is better for so many hosts. SciPy, half of a coordinator's start, is loaded for the first large
    fleet.
    """
    if n <= FEW:
        from fabricpulse.clocksync.solve.small_graph import SmallGraph

        return SmallGraph(n, i, j)
    from fabricpulse.clocksync.solve.large_graph import LargeGraph

    return LargeGraph(n, i, j)
