def fence() -> None:
    """Loads and stores before it are done, for all processors, before those after it begin."""
