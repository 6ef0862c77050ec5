"""Foreign text in a page: names are chosen by others."""

import html

from fabricpulse.core.output import printable


def escape(text: str) -> str:
    """For HTML, in text and attributes: no markup, and nothing that turns the direction of what is read or that a
    terminal to which the page is written takes for an order."""
    return html.escape(printable(text))
