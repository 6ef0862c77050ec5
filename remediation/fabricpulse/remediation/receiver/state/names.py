"""Names of hosts and NICs, as labels and paths of requests have them."""


def is_name(text: str) -> bool:
    """Whether a label or path is the name of a host or NIC."""
    return (
        0 < len(text) <= 253
        and text.isprintable()
        and "/" not in text
        and " " not in text
        and "\\" not in text
        and text not in (".", "..")
    )
