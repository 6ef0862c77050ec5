def layouts() -> dict[str, dict[str, int]]:
    """Layout name -> field -> byte offset in the C++ structs, and `sizeof`."""
