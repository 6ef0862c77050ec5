"""`make bench NAME=audit`: played misconfigurations, blame, planning, the page, the gate.

Prints one JSON object a line.

Recall and precision: each kind of misconfiguration and fault of tests/fixtures/audit/faults.py, played on one host of a
fleet with other hosts that are right, `--seeds` times with another host and NIC. A kind is found when all findings that
it must have are there; every finding beyond them is false. Mixed: two kinds at once, in fleets of one or two kinds of
machines. Paths: each kind of fault between hosts of tests/fixtures/audit/path_faults.py: MTU of one hop, NICs at half
rate, one direction that loses, one slow path of ECMP, swapped cables, clocks and others. These are played on fixtures,
too: agents answer with what tests would measure, and planning, tests made again, blame and findings are those of a run;
the tests themselves are made in namespaces by tests/integration/audit/test_lab.py. Blame: made-up tests of a plan with
a host, a NIC, a NIC in one direction or a path broken. Duration: 16 hosts with two NICs in namespaces of this machine,
whose few processors carry all of them. Late: a lab with a slow NIC beside busy loops, `--loops` of them, `--runs`
audits. Dying: a lab of six hosts, one of which loses its power, its process or its cables amid the run, or freezes.
Frozen: the 16 hosts of `duration`, one of which freezes; both `--runs` times.
Options: `--seeds N`, `--only recall,mixed,paths,blame,planning,page,gate,duration,late,dying,frozen`.
"""

import argparse
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from tests.bench.audit import dying, late
from tests.bench.audit.duration import measure
from tests.bench.rows import Rows, quantile
from tests.fixtures.audit.faults import FAULTS, Expected, expected
from tests.fixtures.audit.path_faults import PATH_FAULTS, PlayedFleet
from tests.fixtures.audit.runs import large_run, measured
from tests.fixtures.hostinfo.host_tree import GpuHost
from tests.fixtures.web.browser import open_page

from fabricpulse.audit.compare.findings import fleet_findings
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import Finding, HostReport
from fabricpulse.audit.pair_tests.blame import Nic, PathTest, blame, retests
from fabricpulse.audit.pair_tests.pairing import directions, most_rounds, plan_rounds
from fabricpulse.audit.report.page import page
from fabricpulse.audit.storage import keep_report
from fabricpulse.core.log import configure_logging

rows = Rows("audit")


def report_of(host: GpuHost, name: str) -> HostReport:
    return audit_host(name, host.reader(), check_patience_s=60, patience_s=300)


def key(finding: Finding) -> Expected:
    if finding.check == "odd-one-out":
        return finding.check, finding.subject, finding.evidence["attribute"]
    return finding.check, finding.subject


def bench_recall(seeds: int, hosts: int = 16) -> None:
    """Every kind on every seed; the other hosts of the fleet are reports of one good tree."""
    found = wanted = true = reported = 0
    # Hundreds of thousands of small files: in memory where there is a place.
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        good = {
            infiniband: report_of(GpuHost(Path(folder) / f"good{infiniband}", infiniband=infiniband), "good")
            for infiniband in (False, True)
        }
        for seed in range(seeds):
            rng = random.Random(seed)
            for fault in FAULTS:
                name = f"gpu-{rng.randrange(hosts):03}"
                host = GpuHost(Path(folder) / f"{seed}-{fault.name}", infiniband=fault.infiniband)
                hit = rng.randrange(host.nics)
                fault.play(host, hit)
                base = good[fault.infiniband]
                others = [
                    HostReport(f"gpu-{number:03}", 0, 0, base.results, base.values)
                    for number in range(hosts)
                    if f"gpu-{number:03}" != name
                ]
                findings = fleet_findings([report_of(host, name), *others], {})
                must = {(name, *finding) for finding in expected(fault, host, hit)}
                said = {(finding.host, *key(finding)) for finding in findings}
                wanted += 1
                found += must <= said
                reported += len(said)
                true += len(said & must)
                if said != must:
                    print(json.dumps({"kind": fault.name, "seed": seed, "missing": sorted(must - said),
                                      "false": sorted(said - must)}), file=sys.stderr)  # fmt: skip
    more = {"kinds": len(FAULTS), "seeds": seeds, "hosts": hosts}
    rows.report("played on fixtures", "recall", found / wanted, "ratio", "== 1", **more)
    rows.report(
        "played on fixtures", "precision", true / reported, "ratio", "== 1", findings=reported, **more
    )


def of_other_kind(host: GpuHost) -> GpuHost:
    """Makes a good host one of another machine: board, CPU, GPUs, memory, and firmware, speed and buffers of NICs are
    others."""
    for name, text in (("product_name", "B4"), ("bios_version", "1.4")):
        host.sys.write(host.sys.root / "class/dmi/id" / name, text)
    host.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: ACME 8358\n")
    host.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.8.0 root=UUID=1 ro intel_iommu=on iommu=pt")
    host.write("proc/meminfo", f"MemTotal: {1024 << 20} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    for index in range(host.nics):
        host.function_file(host.gpu_address(index), "device", "0x20b2")
        host.sys.write(host.sys.ib(f"mlx5_{index}") / "fw_ver", "20.41.1000")
        if not host.infiniband:
            host.net(f"eth{index}np0", "speed", 200_000)
            host.set_dcb(f"eth{index}np0", buffer_bytes=(130_944, 130_944, 0, 0, 0, 0, 0, 0))
    return host


def bench_mixed(seeds: int) -> None:
    """Two faults at once, on one host or on two, in fleets of 4 to 16 hosts of one kind of machine or of two."""
    found = wanted = true = reported = 0
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        trees = (Path(folder) / str(number) for number in itertools.count())
        good = {
            (infiniband, other): report_of(of_other_kind(host) if other else host, "good")
            for infiniband in (False, True)
            for other in (False, True)
            for host in [GpuHost(next(trees), infiniband=infiniband)]
        }
        for seed in range(seeds * 40):
            rng = random.Random(seed)
            first = rng.choice(FAULTS)
            second = rng.choice([f for f in FAULTS if f.infiniband == first.infiniband and f is not first])
            names = [f"gpu-{number:03}" for number in range(rng.choice([4, 5, 8, 16]))]
            others = [f"old-{number:03}" for number in range(rng.choice([0, 3, 8]))]
            hit = rng.sample(names, 2) if rng.random() < 0.5 else [rng.choice(names)] * 2
            nics = rng.sample(range(4), 2)
            must: set[tuple[str, ...]] = set()
            hosts = {
                name: GpuHost(next(trees), name, infiniband=first.infiniband) for name in dict.fromkeys(hit)
            }
            for name, fault, nic in zip(hit, (first, second), nics, strict=True):
                fault.play(hosts[name], nic)
                must |= {(name, *finding) for finding in expected(fault, hosts[name], nic)}
            reports = [report_of(host, name) for name, host in hosts.items()]
            for name in [*names, *others]:
                base = good[first.infiniband, name in others]
                if name not in hosts:
                    reports.append(HostReport(name, 0, 0, base.results, base.values))
            said = {(finding.host, *key(finding)) for finding in fleet_findings(reports, {})}
            wanted += len(must)
            found += len(must & said)
            reported += len(said)
            true += len(said & must)
            if said != must:
                kinds = [first.name, second.name]
                print(json.dumps({"kinds": kinds, "seed": seed, "missing": sorted(must - said),
                                  "false": sorted(said - must)}), file=sys.stderr)  # fmt: skip
    case = "two faults at once, one or two kinds of machines"
    rows.report(case, "recall", found / wanted, "ratio", "== 1", cases=seeds * 40)
    rows.report(case, "precision", true / reported, "ratio", "== 1", findings=reported)


def bench_paths(seeds: int, hosts: int = 8) -> None:
    """Faults between hosts, each on every seed, and as many runs of a fleet on which all is right."""
    found = wanted = true = reported = 0
    for seed in range(seeds):
        for fault in (*PATH_FAULTS, None):
            name = fault.name if fault else "none"
            fleet = PlayedFleet(hosts, 2, random.Random(f"{name} {seed}"))
            must = fault.play(fleet) if fault else set()
            said = {(finding.check, finding.host, finding.subject) for finding in fleet.findings()}
            wanted += bool(fault)
            found += bool(fault) and must <= said
            reported += len(said)
            true += len(said & must)
            if said != must:
                print(json.dumps({"kind": name, "seed": seed, "missing": sorted(must - said),
                                  "false": sorted(said - must)}), file=sys.stderr)  # fmt: skip
    more = {"kinds": len(PATH_FAULTS), "seeds": seeds, "hosts": hosts}
    case = "between hosts, played on fixtures"
    rows.report(case, "recall", found / wanted, "ratio", "== 1", **more)
    rows.report(case, "precision", true / reported, "ratio", "== 1", findings=reported, **more)


def bench_blame(seeds: int) -> None:
    """A fleet of 16 hosts and 2 rails, tested by its plan; what was not decided is tested again, as a run would."""
    kinds = ("host", "nic", "nic sends", "nic receives", "path")
    right = dict.fromkeys(kinds, 0)
    for seed in range(seeds * 20):
        rng = random.Random(seed)
        nics: dict[int, list[Nic]] = {
            rail: [(f"h{host}", f"eth{rail}") for host in range(16)] for rail in (0, 1)
        }
        plan = plan_rounds([""] * 16)
        ways = [
            (nics[rail][a], nics[rail][b])
            for rail in (0, 1)
            for a, b in directions(pair for pairs in plan.rounds for pair in pairs)
        ]
        for kind in kinds:
            bad = rng.choice(nics[rng.randrange(2)])
            path = rng.choice(ways)

            def fails(
                way: tuple[Nic, Nic], kind: str = kind, bad: Nic = bad, path: tuple[Nic, Nic] = path
            ) -> bool:
                if kind == "host":
                    return bad[0] in (way[0][0], way[1][0])
                if kind == "path":
                    return way == path
                ends = {"nic": (0, 1), "nic sends": (0,), "nic receives": (1,)}[kind]
                return any(way[end] == bad for end in ends)

            tests = [PathTest(*way, not fails(way)) for way in ways]
            tests += [PathTest(*way, not fails(way)) for way in retests(tests)]
            [first, *more] = blame(tests)
            named = {
                "host": ("host", (bad[0], ""), "both"),
                "nic": ("nic", bad, "both"),
                "nic sends": ("nic", bad, "sends"),
                "nic receives": ("nic", bad, "receives"),
                "path": ("path", path[0], "sends"),
            }[kind]
            right[kind] += (first.kind, first.nic, first.side) == named and not more
    for kind in kinds:
        rows.report(
            f"slow or dead {kind}", "blame", right[kind] / (seeds * 20), "ratio", "== 1", cases=seeds * 20
        )


def bench_planning() -> None:
    """50,048 hosts below 782 leaves of 64, one rail."""
    leaves = [f"leaf{index // 64}" for index in range(50_048)]
    random.Random(1).shuffle(leaves)
    begun = time.process_time()
    plan = plan_rounds(leaves)
    seconds = time.process_time() - begun
    most = most_rounds(len(leaves))
    rows.report("50,048 hosts, leaves of 64", "rounds", len(plan.rounds), "rounds", f"<= {most}")
    rows.report(
        "50,048 hosts, leaves of 64", "leaf_pairs_covered", plan.covered / plan.leaf_pairs, "ratio", "== 1"
    )
    rows.report("50,048 hosts, leaves of 64", "planning_cpu_s", seconds, "s", "<= 5")
    unknown = plan_rounds([""] * 50_048)
    rows.report("50,048 hosts, leaves not known", "rounds", len(unknown.rounds), "rounds", f"<= {most}")
    rows.report(
        "50,048 hosts, leaves not known", "host_pairs_covered", unknown.covered / unknown.leaf_pairs, "ratio"
    )


def bench_page() -> None:
    """1,000 hosts with 60 checks, one outcome in 50 failed, and what pairs on eight rails measured, in headless
    Chromium, from disk: until what is seen first is drawn, and until the grid and each of the matrices are, too, which
    are drawn once somebody is near them."""
    run = large_run(1000, 60)
    run = msgspec.structs.replace(run, measurements=measured(run.asked, 8))
    begun = time.process_time()
    text = page(run).encode()
    seconds = time.process_time() - begun
    rows.report(
        "1,000 hosts x 60 checks",
        "html_mb",
        len(text) / 1e6,
        "MB",
        "<= 5",
        findings=len(run.findings),
        measurements=len(run.measurements),
    )
    rows.report("1,000 hosts x 60 checks", "html_cpu_s", seconds, "s")
    if shutil.which("chromium-headless-shell") is None:
        for row in ("first_drawn_s", "grid_drawn_s", "matrix_drawn_s"):
            rows.report("1,000 hosts x 60 checks", row, math.nan, "s", "<= 1", why="no headless Chromium")
        return
    # The browser's own clock; what is read of the canvas is there once it is painted.
    script = """
        const first = performance.now(), grid = document.getElementById("grid"), before = grid.dataset.painted;
        grid.focus();
        grid.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown"}));
        const pixels = grid.getContext("2d").getImageData(150, 130, 200, 200).data;
        const whole = performance.now(), pairs = document.getElementById("pairs"), drawn = [];
        const select = document.getElementById("matrix"), early = pairs.dataset.painted !== undefined;
        for (let kind = 0; kind < select.options.length; kind++) {
            const begun = performance.now();
            if (kind) { select.value = kind; select.dispatchEvent(new Event("change")); } else pairs.focus();
            const cells = pairs.getContext("2d").getImageData(0, 0, pairs.width, pairs.height).data;
            if (pairs.dataset.painted === "1" && cells.some(x => x)) drawn.push(performance.now() - begun);
        }
        return [first, whole, before === undefined && !early,
                grid.dataset.painted === "1" && pixels.some(x => x), drawn, select.options.length];
    """
    first, whole, opened, matrices = [], [], [], []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            answer = open_page(text.decode(), Path(folder), script)["result"]
            first_ms, whole_ms, was_not, painted, drawn_ms, kinds = answer
            opened.append(time.monotonic() - begun)
            first.append(first_ms / 1000)
            whole.append(whole_ms / 1000)
            matrices.append((whole_ms + max(drawn_ms, default=math.nan)) / 1000)
            if not (was_not and painted and len(drawn_ms) == kinds == 24):
                rows.missed.append("page: the grid or a matrix was painted too early, or not at all")
    # Findings and the tree; with the grid; with the slowest of the matrices; and the whole life of a new browser.
    for row, seen, must in (
        ("first_drawn_s", first, "<= 1"),
        ("grid_drawn_s", whole, "<= 1"),
        ("matrix_drawn_s", matrices, "<= 1"),
        ("browser_wall_s", opened, None),
    ):
        rows.report(
            "1,000 hosts x 60 checks", row, quantile(seen, 0.5), "s", must, worst_s=round(max(seen), 3)
        )


def bench_gate() -> None:
    """`audit gate` as a health check runs it, a new process each, with the report of a host of 8 NICs."""
    with tempfile.TemporaryDirectory() as folder:
        root, state = Path(folder) / "host", Path(folder) / "state"
        report = report_of(GpuHost(root, nics=8), "gpu-001")
        keep_report(state, report, 3)
        code = "from fabricpulse.core.cli import main; main()"
        walls, spent = [], []
        for _ in range(10):
            before = os.times()
            begun = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-Ic", code, "audit", "gate", "--state", str(state)],
                check=False,
                capture_output=True,
            )
            walls.append(time.monotonic() - begun)
            after = os.times()
            spent.append(
                after.children_user + after.children_system - before.children_user - before.children_system
            )
            if done.returncode != 0:
                rows.missed.append(f"gate: exit code {done.returncode}")
        rows.report("8 NICs", "gate_s", quantile(walls, 0.5), "s", "<= 1", cpu_s=round(quantile(spent, 0.5), 3),
                    worst_s=round(max(walls), 3))  # fmt: skip
        begun = time.process_time()
        report_of(GpuHost(Path(folder) / "again", nics=8), "gpu-001")
        rows.report("8 NICs, tree included", "local_cpu_s", time.process_time() - begun, "s")


def bench_duration() -> None:
    """A good lab: whatever is found of paths is false."""
    result = measure()
    seconds = float(str(result.pop("seconds")))
    false = float(str(result.pop("path_findings")))
    rows.report("16 hosts x 2 rails, all but NCCL", "duration_s", seconds, "s", "<= 60", **result)
    rows.report("16 hosts x 2 rails, all but NCCL", "false_findings_of_paths", false, "findings", "== 0")


def bench_late(runs: int, loops: int) -> None:
    """Nobody but the slow NIC is accused, whatever gets no processor."""
    result = late.measure(runs, loops)
    case = f"NIC of 40 Mb/s, {loops} busy loops"
    least, most = result.mbit_s
    rows.report(case, "named", result.right / runs, "ratio", "== 1", runs=runs, undecided=result.undecided,
                seconds=result.seconds, load=result.load)  # fmt: skip
    rows.report(case, "others_accused", result.accused, "findings", "== 0")
    rows.report(
        case, "not_judged", result.spoilt / result.ways, "ratio", least_mbit_s=least, most_mbit_s=most
    )


def bench_dying(times: int) -> None:
    """Nobody but the host that dies amid the run is accused."""
    result = dying.measure(times, 1)
    case = f"6 hosts, one dies ({', '.join(dying.KINDS)})"
    rows.report(case, "others_accused", result.accused, "findings", "== 0", by_check=result.by_check)
    # At the end of a run there is nothing left that would show it.
    rows.report(case, "unnamed", result.unnamed, "runs", runs=result.runs)
    rows.report(
        case, "duration_s", max(result.seconds), "s", "<= 60", well_s=result.well_s, all=result.seconds
    )


def bench_frozen(times: int) -> None:
    """The same as `duration`, and one of the hosts freezes amid it."""
    rng = random.Random(1)
    for _ in range(times):
        result = measure(amid=lambda lab, stack: dying.freeze(lab, rng, stack, 30))
        seconds = float(str(result.pop("seconds")))
        case = "16 hosts x 2 rails, one freezes, all but NCCL"
        rows.report(case, "duration_s", seconds, "s", "<= 60", **result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        default="",
        help="comma separated: recall, mixed, paths, blame, planning, page, gate, duration, late, dying, frozen",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--loops", type=int, default=14)
    options = parser.parse_args()
    configure_logging("error")
    parts = {
        "recall": lambda: bench_recall(options.seeds),
        "mixed": lambda: bench_mixed(options.seeds),
        "paths": lambda: bench_paths(options.seeds),
        "blame": lambda: bench_blame(options.seeds),
        "planning": bench_planning,
        "page": bench_page,
        "gate": bench_gate,
        "duration": bench_duration,
        "late": lambda: bench_late(options.runs, options.loops),
        "dying": lambda: bench_dying(options.runs),
        "frozen": lambda: bench_frozen(options.runs),
    }
    for name in options.only.split(",") if options.only else parts:
        parts[name]()
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
