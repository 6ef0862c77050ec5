"""Text from elsewhere on a terminal."""


def printable(value: object) -> str:
    """`value` with every character that is not printable as an escape: `\\x1b`, `\\n`.

    Alerts, errors of processes and reasons of operators come from elsewhere; on a terminal they are text and move no
    cursor.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
