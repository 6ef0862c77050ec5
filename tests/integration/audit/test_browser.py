"""The page of a run in a real browser, opened from disk."""

from pathlib import Path

import msgspec
import pytest
from tests.fixtures.audit.runs import large_run, measured
from tests.fixtures.web.browser import open_page

from fabricpulse.audit.model import Finding, HostReport, Measurement, Outcome, Result, Run, Status
from fabricpulse.audit.report.page import page

NASTY = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def test_large_run(tmp_path: Path) -> None:
    """1,000 hosts with 60 checks: no error, findings filtered and opened by keys, the grid painted."""
    run = large_run(1000, 60)
    reported = open_page(
        page(run),
        tmp_path,
        """
        const rows = () => document.querySelectorAll('#rows tr').length, all = rows();
        const filter = document.getElementById('filter');
        document.dispatchEvent(new KeyboardEvent('keydown', {key: '/'}));
        const focused = document.activeElement === filter;
        filter.value = 'gpu-00007'; filter.dispatchEvent(new Event('input'));
        const some = rows(), first = document.querySelector('#rows tr');
        first.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
        const evidence = document.querySelector('#rows tr.open').textContent;
        const grid = document.getElementById('grid'), before = grid.dataset.painted;
        grid.focus();
        grid.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}));
        const pixels = grid.getContext('2d').getImageData(150, 130, 200, 200).data;
        const colours = new Set();
        for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3]) colours.add(pixels.slice(i, i + 3).join());
        return {all, some, focused, evidence, unpainted: before === undefined, colours: colours.size,
                cell: document.getElementById('cell').textContent, names: [data.hosts[1], brief(data.hosts[1])],
                scrolled: (() => { const [box, mark] = ['gridbox', 'mark'].map(id => document.getElementById(id));
                  for (let i = 0; i < 90; i++) grid.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}));
                  return [box.scrollTop > 0, !mark.hidden, mark.offsetTop > box.scrollTop,
                          mark.offsetTop < box.scrollTop + box.clientHeight]; })(),
                groups: document.querySelectorAll('#tree details').length};
        """,
    )
    assert reported["errors"] == []
    found = reported["result"]
    of_host = sum(f.host.startswith("gpu-00007") for f in run.findings)
    assert found["all"] == 300
    assert found["some"] == of_host
    assert found["focused"] is True
    assert found["evidence"].startswith("value1500usual9000")
    assert found["cell"].startswith("gpu-00001.cluster.example, ")
    # Its 14 million pixels, far below, cost nothing until somebody comes near.
    assert found["unpainted"] is True
    assert found["colours"] >= 2
    # The name is not cut where hosts differ, and what keys move to is in sight.
    assert found["names"] == ["gpu-00001.cluster.example", "gpu-00001"]
    assert found["scrolled"] == [True, True, True, True]
    assert found["groups"] == len({f.check for f in run.findings})


def test_matrices(tmp_path: Path) -> None:
    """What pairs measured is drawn, a matrix a kind; keys tell each way, and what failed says so."""
    ends = ("rail0", "h0", "eth0", "h1", "eth0")
    back = ("rail0", "h1", "eth0", "h0", "eth0")
    measured = (
        Measurement("bandwidth", *ends, 9.8e9, True),
        Measurement("bandwidth", *back, 1e9, False),
        Measurement("loss", *ends, 0.012, False),
    )
    run = Run("x", 0, 1, ("h0", "h1"), (), (), measurements=measured)
    reported = open_page(
        page(run),
        tmp_path,
        """
        const canvas = document.getElementById('pairs'), said = () => document.getElementById('pair').textContent;
        const press = key => canvas.dispatchEvent(new KeyboardEvent('keydown', {key}));
        press('ArrowRight'); const there = said();
        press('ArrowDown'); press('ArrowLeft'); const back = said();
        const at = canvas.getContext('2d').getImageData(2, canvas.height - 3, 1, 1).data;
        const red = at[0] > 150 && at[1] < 90;
        const select = document.getElementById('matrix'); select.value = 1; select.dispatchEvent(new Event('change'));
        press('ArrowRight');
        return {there, back, red, loss: said(), options: select.options.length};
        """,
    )
    assert reported["errors"] == []
    assert reported["result"] == {
        "there": "h0 eth0 to h1 eth0: 9.8 Gb/s",
        "back": "h1 eth0 to h0 eth0: 1 Gb/s, failed",
        "red": True,
        "loss": "h0 eth0 to h1 eth0: 1.2 % lost, failed",
        "options": 2,
    }


def test_matrices_of_1000_hosts_with_eight_rails(tmp_path: Path) -> None:
    """Every NIC and every way that was tested is in the picture, and the page says so; what failed most is named."""
    run = large_run(1000, 5)
    everything = measured([report.host for report in run.hosts], 8)
    ways = tuple(m for m in everything if m.kind == "bandwidth")
    text = page(msgspec.structs.replace(run, measurements=ways))
    assert len(text.encode()) <= 5_000_000
    reported = open_page(
        text,
        tmp_path,
        """
        const canvas = document.getElementById('pairs'), select = document.getElementById('matrix');
        canvas.focus();
        canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}));
        const m = matrix(), rows = new Set(m.cells.map(x => x[0]));
        return {matrices: select.options.length, rows: rows.size, nics: m.names.length, ways: m.cells.length,
                name: m.names[999], scope: document.getElementById('scope').textContent,
                worst: document.getElementById('worst').textContent, painted: canvas.dataset.painted};
        """,
    )
    assert reported["errors"] == []
    found = reported["result"]
    of_one = sum(m.network == "rail0" for m in ways)
    assert (found["matrices"], found["rows"], found["nics"], found["ways"]) == (8, 1000, 1000, of_one)
    assert found["name"] == "gpu-00999.cluster.example eth0"
    assert found["scope"] == f"1000 NICs, all {of_one} ways that were tested are drawn."
    assert found["worst"].startswith("Most ways failed: gpu-")
    assert found["painted"] == "1"


@pytest.mark.parametrize("dark", [False, True])
def test_dark_and_light(tmp_path: Path, dark: bool) -> None:
    """The page follows the system: another background and legible text."""
    reported = open_page(
        page(large_run(3, 5)),
        tmp_path,
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color];",
        dark=dark,
    )
    assert reported["errors"] == []
    background, text = ([int(n) for n in colour[4:-1].split(",")] for colour in reported["result"])
    assert (sum(background) < 200) == dark
    assert abs(sum(background) - sum(text)) > 400


def test_what_a_host_says_runs_nowhere(tmp_path: Path) -> None:
    """Names, summaries and evidence that are markup are shown as text."""
    outcome = Outcome(Status.FAILED, NASTY, NASTY[:100], {NASTY[:50]: NASTY})
    report = HostReport(NASTY, 0, 1, (Result("memlock", "node", "error", outcome),), ())
    finding = Finding("memlock", "node", "error", NASTY, NASTY, NASTY, {NASTY: NASTY})
    run = Run("x", 0, 1, (NASTY,), (report,), (finding,), notes=(NASTY,))
    reported = open_page(
        page(run),
        tmp_path,
        """
        document.querySelector('#rows tr').click();
        document.querySelectorAll('details').forEach(d => d.open = true);
        const text = document.querySelector('#rows').textContent;
        return {title: document.title, images: document.images.length, text};
        """,
    )
    assert reported["errors"] == []
    assert reported["result"]["title"] == "Fleet audit x"
    assert reported["result"]["images"] == 0
    assert NASTY in reported["result"]["text"]
