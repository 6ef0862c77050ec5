"""What people see: the table, the plot, and one sentence when there is nothing to see."""

import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from fabricpulse.clocksync.command import command
from fabricpulse.clocksync.plot import HistoryPoint, svg, write_plot
from fabricpulse.clocksync.status import duration, print_status
from fabricpulse.core.errors import UserError

EDGE = {
    "device": "rail0", "peer": "h1", "peer_device": "rail0", "offset_ns": 3_328_574_784, "rate_ppb": 34_849.8,
    "half_gap_ns": 1660.7, "bound_ns": 1862.6, "trains": 357, "quality": "filtered",
    "residual_ns": 14_000, "fits": False,
}  # fmt: skip
HOST = {
    "host": "h0", "status": "synchronized", "bound_ns": 2_050, "offset_ns": 533_251_217, "rate_ppb": -25_946.7,
    "coordinator_up": True, "suspect": "", "edges": [EDGE],
}  # fmt: skip


def text_of(document: dict[str, object]) -> str:
    out = StringIO()
    print_status(document, Console(file=out, width=160))
    return out.getvalue()


def test_the_table_of_a_host_says_status_bound_and_worst_edge() -> None:
    """Status, bound and every edge with its residual are on the screen."""
    text = text_of(HOST)
    for word in ("h0", "synchronized", "2.05 µs", "533 ms", "h1 rail0", "357", "filtered", "14 µs"):
        assert word in text


def test_the_table_says_what_an_anchor_is_worth() -> None:
    """Only of a host that is one, and also when it is exact."""
    assert "anchor: the host's clock is UTC within 292 µs" in text_of({**HOST, "anchor_bound_ns": 292_000})
    assert "anchor" in text_of({**HOST, "anchor_bound_ns": 0})
    assert "anchor" not in text_of({**HOST, "anchor_bound_ns": None})
    assert "no anchor: clock of the NIC: it was stepped" in text_of(
        {**HOST, "anchor_refused": "it was stepped"}
    )


def test_the_table_says_why_a_host_is_not_synchronised() -> None:
    """The reason is on the screen, and only while there is one."""
    text = text_of({**HOST, "status": "holdover", "why": "no probe samples: is fabricpulse mesh running"})
    assert "not synchronized: no probe samples" in text
    assert "not synchronized" not in text_of({**HOST, "why": ""})


LONG = "gpu-node-0123.rack17.dc4.example.com"


def test_long_names_are_whole_in_a_pipe_and_in_a_narrow_terminal() -> None:
    """For grep: a row is one line, however long. For people: what has no room goes on in the next line."""
    host: dict[str, object] = {**HOST, "host": LONG, "edges": [{**EDGE, "peer": LONG}]}
    member = {
        "host": LONG, "bound_ns": 1, "correction_ns": 1, "rate_ppb": 1.0, "edges": 1, "outlier_edges": 0, "age_s": 0.1,
        "suspect": "its stamps jumped though its clock did not",
    }  # fmt: skip
    fleet: dict[str, object] = {"members": [member], "residual_p50_ns": 0.0, "outlier_edges": []}
    for document, cells in ((host, (f"{LONG} rail0", "357")), (fleet, (LONG, str(member["suspect"])))):
        piped = StringIO()
        print_status(document, Console(file=piped, width=80))
        assert any(all(cell in line for cell in cells) for line in piped.getvalue().splitlines())
        shown = StringIO()
        print_status(document, Console(file=shown, width=80, force_terminal=True, color_system=None))
        assert "…" not in shown.getvalue()


def test_brackets_of_addresses_and_answers_are_no_markup() -> None:
    """An IPv6 URL stays whole, and whatever a server says is shown as it is."""
    why = "no coordinator takes the reports: http://[fd00:17::2]:9614: 401 [/x] [red]no"
    text = text_of({**HOST, "status": "holdover", "why": why, "host": "[b]h0", "suspect": "[/i]"})
    for word in (why, "[b]h0", "suspect: [/i]"):
        assert word in text


def test_a_coordinator_has_nothing_to_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that says whom to ask instead."""
    document = {"members": [], "residual_p50_ns": 0.0, "outlier_edges": []}
    monkeypatch.setattr("fabricpulse.core.web.document.fetch_document", lambda *_, **__: document)
    result = CliRunner().invoke(command, ["status", "--plot", str(tmp_path / "a.svg")])
    assert isinstance(result.exception, UserError)
    assert "sidecar" in str(result.exception)


def test_a_png_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named, and the format that needs none."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"fabricpulse\[plot\].*\.svg"):
        write_plot(tmp_path / "a.png", "h0", [HistoryPoint(1.0, 0.0, 1.0, 0.0, "synchronized")])


def test_the_table_of_the_fleet_names_suspects_and_outliers() -> None:
    """A faulty host and a bad edge are named with their numbers."""
    member = {
        "host": "h7", "age_s": 0.3, "bound_ns": None, "correction_ns": 5, "rate_ppb": None, "edges": 3,
        "outlier_edges": 3, "suspect": "its stamps jumped though its clock did not",
        "nic_bias_ns": {"rail0": 90, "rail3": -310},
    }  # fmt: skip
    outlier = {"host": "h7", "device": "rail0", "peer": "h1", "peer_device": "rail1", "residual_ns": 2_500}
    text = text_of({"members": [member], "residual_p50_ns": 12.0, "held_out_ns": {"0.5": 9.0, "0.99": 41.0},
                    "outlier_edges": [outlier]})  # fmt: skip
    for word in (
        "99 % of edges within 41 ns of what all others say",
        "h7",
        "its stamps jumped",
        "rail3 -310 ns",
        "h1 rail1",
        "2.5 µs",
        "12 ns",
    ):
        assert word in text


def test_the_table_of_the_fleet_says_that_it_is_not_the_fleet_and_whom_it_waits_for() -> None:
    """Only while that is so."""
    fleet = {"members": [], "residual_p50_ns": 0.0, "outlier_edges": []}
    text = text_of({**fleet, "quorum": False, "awaited_anchors": ["h1", "h4"]})
    assert "no quorum" in text
    assert "waits for UTC from h1, h4" in text
    assert "two hosts report as h2" in text_of({**fleet, "duplicate_names": ["h2"]})
    text = text_of({**fleet, "quorum": True, "awaited_anchors": []})
    assert "no quorum" not in text
    assert "waits" not in text


@pytest.mark.parametrize(
    ("ns", "expected"), [(None, "-"), (0, "0 ns"), (-31.4, "-31.4 ns"), (2_050, "2.05 µs"), (1.5e9, "1.5 s")]
)
def test_duration(ns: float | None, expected: str) -> None:
    """Three digits and a unit."""
    assert duration(ns) == expected


def test_the_plot_is_svg_with_every_point(tmp_path: Path) -> None:
    """Well-formed, one vertex a point, a band for each status; a name with markup does no harm."""
    points = [
        HistoryPoint(100.0 - k, k - 50, 2_000, 1.0, "holdover" if k > 80 else "synchronized")
        for k in range(100)
    ]
    root = ElementTree.fromstring(svg("<h&0>", points))  # noqa: S314 - our own text
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines[0].attrib["points"].split()) == 100
    assert "holdover" in ElementTree.tostring(root, encoding="unicode")
    write_plot(tmp_path / "a.svg", "h0", points)
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


@pytest.mark.thorough
def test_the_png_marks_holdover(tmp_path: Path) -> None:
    """What is seen: the colour of holdover over its fifth of the time, that of synchronized over the rest."""
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    points = [
        HistoryPoint(100.0 - k, 0, 2_000, 1.0, "holdover" if 60 <= k < 80 else "synchronized")
        for k in range(101)
    ]
    write_plot(tmp_path / "a.png", "h0", points)
    seen = (image.imread(tmp_path / "a.png")[:, :, :3] * 255).round()

    def columns(red: int, green: int, blue: int) -> int:
        """Pixel columns in which the colour fills a quarter of the height: the band, not the legend."""
        return int(((seen == (red, green, blue)).all(axis=2).mean(axis=0) > 0.25).sum())

    holdover, synchronized = columns(0xF6, 0xDF, 0xB0), columns(0xCF, 0xE8, 0xCF)
    assert holdover > 50
    assert 0.22 < holdover / synchronized < 0.28, (holdover, synchronized)


def test_a_plot_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    """Wrong ending, no history, no directory."""
    point = HistoryPoint(1.0, 0.0, 1.0, 0.0, "synchronized")
    with pytest.raises(UserError, match=r"\.svg or \.png"):
        write_plot(tmp_path / "a.pdf", "h0", [point])
    with pytest.raises(UserError, match="no history"):
        write_plot(tmp_path / "a.svg", "h0", [])
    with pytest.raises(UserError, match="cannot write"):
        write_plot(tmp_path / "none" / "a.svg", "h0", [point])


def test_an_unreachable_daemon_is_one_sentence() -> None:
    """Nothing listens there: the URL and what to check, no traceback."""
    result = CliRunner().invoke(command, ["status", "--url", "http://127.0.0.1:9"])
    assert isinstance(result.exception, UserError)
    assert "127.0.0.1:9" in str(result.exception)


@pytest.mark.parametrize("url", ["127.0.0.1:9613", "http://127.0.0.1:notaport", "http://[::1:9613"])
def test_a_url_that_is_none_is_called_so(url: str) -> None:
    """And not a server that behaves strangely."""
    result = CliRunner().invoke(command, ["status", "--url", url])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"--url {url!r} is not an http or https URL")
