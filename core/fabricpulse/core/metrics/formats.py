"""The two text formats of an exposition, and which of them a scraper wants.

Sources: Prometheus' exposition formats (text 0.0.4), the OpenMetrics specification 1.0, RFC 9110 section 12.5.1.
"""

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache


class TextFormat(Enum):
    """A text format; the value is its content type.

    Samples are the same to the byte in both, `le` texts included: series do not change with the format.
    """

    PLAIN = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @property
    def end(self) -> bytes:
        """What ends a whole exposition. Parts of one are joined without it."""
        return b"# EOF\n" if self is TextFormat.OPENMETRICS else b""


# Media range (type, subtype, version) of a format, the version as its name in the parameter.
_OFFERED = {
    TextFormat.PLAIN: ("text", "plain", "0.0.4"),
    TextFormat.OPENMETRICS: ("application", "openmetrics-text", "1.0.0"),
}


@lru_cache(maxsize=64)  # a scraper sends the same header for ever
def negotiate(accept: str) -> TextFormat:
    """The format that an Accept header asks for.

    OpenMetrics only for a client that names it and ranks it no lower than the text format 0.0.4; all others get the
    latter, even those that accept neither: readable text is more useful than a 406.
    """
    ranges = list(_ranges(accept))
    plain, _ = _quality(ranges, TextFormat.PLAIN)
    openmetrics, named = _quality(ranges, TextFormat.OPENMETRICS)
    return TextFormat.OPENMETRICS if named and openmetrics > 0 and openmetrics >= plain else TextFormat.PLAIN


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header lets an answer be compressed with gzip."""
    qualities = {coding: quality for coding, _, quality in _entries(accept_encoding)}
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _quality(ranges: list[tuple[str, str, str, float]], wanted: TextFormat) -> tuple[float, bool]:
    """Quality of a format, and whether a range names its very type. The most specific range that matches counts."""
    kind, subtype, version = _OFFERED[wanted]
    best = (-1, 0.0)
    for range_kind, range_subtype, range_version, quality in ranges:
        if range_version not in ("", version):
            continue
        if (range_kind, range_subtype) == (kind, subtype):
            best = max(best, (3 if range_version else 2, quality))
        elif (range_kind, range_subtype) == (kind, "*"):
            best = max(best, (1, quality))
        elif (range_kind, range_subtype) == ("*", "*"):
            best = max(best, (0, quality))
    specificity, quality = best
    return quality, specificity >= 2


def _ranges(accept: str) -> Iterator[tuple[str, str, str, float]]:
    """(type, subtype, version or "", quality) of each media range."""
    for media, parameters, quality in _entries(accept):
        kind, _, subtype = media.partition("/")
        # Other parameters (escaping=allow-utf-8, charset) do not matter: our names are of the old character set.
        yield kind, subtype, parameters.get("version", ""), quality


def _entries(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(value, parameters without q, quality) of each element; one whose quality is no number counts as refused."""
    for element in header.split(","):
        value, *rest = (part.strip() for part in element.split(";"))
        parameters = {}
        for part in rest:
            name, _, text = part.partition("=")
            parameters[name.strip().lower()] = text.strip().strip('"')
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        if value:
            yield value.lower(), parameters, quality if 0 <= quality <= 1 else 0.0
