"""What a workload is to the scheduler: the kernel's word first, and nobody speaks for another user's process."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from tests.fixtures.plugin.telemetry_file import TelemetryFile

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.plugin_ipc.telemetry import (
    PluginTelemetryReader,
    Table,
    TelemetrySnapshot,
    process_start_ticks,
)
from fabricpulse.qp import process_facts
from fabricpulse.qp.cgroup import CgroupMembership, membership
from fabricpulse.qp.metrics import METRICS
from fabricpulse.qp.process_facts import NameService, ProcessFacts, ProcessTable, UserNames
from fabricpulse.qp.workload_info import (
    MOST_PER_OWNER,
    Claim,
    WorkloadInfo,
    claim,
    expose_workloads,
    info,
    workload_infos,
)

UID = "12345678-9abc-def0-1234-56789abcdef0"
UNDERSCORES = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
SLURM = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"
POD = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORES}.slice/cri-x.scope"


@pytest.mark.parametrize(
    ("text", "job", "pod"),
    [
        (SLURM, "4711", ""),
        ("0::/system.slice/node7_slurmstepd.scope/job_4711/step_batch", "4711", ""),
        ("0::/slurm.slice/slurmstepd.scope/job_4711", "4711", ""),
        ("5:memory:/slurm/uid_1000/job_4711/step_0/task_0\n1:name=systemd:/user.slice", "4711", ""),
        ("3:cpuset:/\n2:cpu,cpuacct:/slurm_node7/uid_1000/job_4711", "4711", ""),
        ("0::/../../../system.slice/slurmstepd.scope/job_4711/step_0", "4711", ""),
        (POD, "", UID),
        (f"0::/kubepods.slice/kubepods-pod{UNDERSCORES}.slice/cri-containerd-abc.scope", "", UID),
        (f"0::/kubepods.slice/kubepods-pod{STATIC}.slice/crio-abc.scope", "", STATIC),
        (f"4:cpu:/kubepods/besteffort/pod{UID}/abc", "", UID),
        (f"0::/kubepods/pod{UID}/abc", "", UID),
        (
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{UNDERSCORES}.slice/cri-containerd-abc.scope",
            *("", UID),
        ),
        (f"0::/../../kubepods-burstable-pod{UNDERSCORES}.slice/cri-x.scope", "", UID),
        (f"0::/../../pod{UID}/abc", "", UID),
    ],
)
def test_paths_of_jobs_and_pods(text: str, job: str, pod: str) -> None:
    """As Slurm and the kubelet name them, in both versions of cgroups, also seen from another cgroup namespace."""
    assert membership(text) == CgroupMembership(job, pod)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "nonsense",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_4711",
        "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_4711",
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod{UNDERSCORES}.slice",
        f"0::/pod{UID}/abc",
        f"0::/docker/kubepods/pod{UID}",
        "0::/slurm/uid_1000/job_",
        "0::/system.slice/slurmstepd.scope/job_" + "9" * 19,
        "0::/system.slice/slurmstepd.scope/job_4711x",
        "0::/system.slice/slurmstepd.scope/job_٤",
    ],
)
def test_paths_that_prove_nothing(text: str) -> None:
    """A cgroup that a user can make, with whatever name, is no job's; nor is half a name."""
    assert membership(text) is None


def test_the_outermost_job_counts() -> None:
    """What a job makes below its own cgroup does not make it another job."""
    inner = "/system.slice/slurmstepd.scope/job_9"
    assert membership(SLURM + inner) == CgroupMembership(slurm_job="4711")
    assert membership(POD + inner) == CgroupMembership(pod_uid=UID)


def test_no_path_below_a_user_s_cgroup_is_believed() -> None:
    """Random paths that a user can make, out of the pieces that matter: none is taken for a job."""
    rng = random.Random(7)
    pieces = [
        *("system.slice", "slurmstepd.scope", "job_1", "slurm", "uid_0", "kubepods.slice", "..", "x"),
        *(f"kubepods-pod{UNDERSCORES}.slice", f"pod{UID}", "kubepods", "a_slurmstepd.scope"),
    ]
    for _ in range(2000):
        below = "/".join(rng.choices(pieces, k=rng.randint(1, 6)))
        assert membership(f"0::/user.slice/user-1000.slice/user@1000.service/{below}") is None, below


class Proc:
    """A /proc of a test's making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, ticks: int, uid: int, cgroup: str = "0::/", inner: int | None = None) -> None:
        place = self.folder / str(pid)
        place.mkdir()
        stat = " ".join(["0"] * 18)
        (place / "stat").write_text(f"{pid} (a ) b) S {stat} {ticks} 0")
        numbers = f"{pid}\t{inner}" if inner else f"{pid}"
        (place / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{numbers}\n")
        (place / "cgroup").write_text(cgroup + "\n")


class Process:
    """Who writes a telemetry file, as the file says."""

    def __init__(self, owner: int, pid: int, ticks: int) -> None:
        self.process = (owner, pid, ticks, 0)


NAMES = {0: "root", 1000: "alice"}
HERTZ = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "proc").mkdir()
    return Proc(tmp_path / "proc")


def table(proc: Proc) -> ProcessTable:
    return ProcessTable(proc.folder, UserNames(NAMES.get), uptime_s=lambda: 500.0, now_s=lambda: 10_000.0)


def facts(table: ProcessTable, process: Process, now_s: float = 0.0) -> ProcessFacts:
    return table.facts([process], now_s)[process.process]


def test_the_kernel_s_word(proc: Proc) -> None:
    """Job, user and start of a process that runs as the owner of its file."""
    proc.add(17, 300 * HERTZ, 1000, SLURM)
    assert facts(table(proc), Process(1000, 17, 300 * HERTZ)) == ProcessFacts(
        "alice", CgroupMembership(slurm_job="4711"), 9800.0
    )


@pytest.mark.parametrize(("owner", "ticks"), [(1001, 300), (1000, 301)])
def test_nobody_speaks_for_another_process(proc: Proc, owner: int, ticks: int) -> None:
    """A file of another user, or of a process that had this number before: nothing of the process is taken."""
    proc.add(17, 300, 1000, SLURM)
    found = facts(table(proc), Process(owner, 17, ticks))
    assert (found.member_of, found.start_s) == (None, None)
    assert found.user == NAMES.get(owner, f"uid:{owner}")


def test_a_process_of_a_container(proc: Proc) -> None:
    """It calls itself 1; by start, user and its number in its own namespace it is found in ours."""
    proc.add(1, 5, 0)
    proc.add(4000, 300, 0, "0::/", inner=1)
    proc.add(4001, 301, 0, POD, inner=1)
    proc.add(4002, 301, 1000, SLURM, inner=1)
    assert facts(table(proc), Process(0, 1, 301)).member_of == CgroupMembership(pod_uid=UID)


def test_lost_processes_cost_a_walk_now_and_then(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that name no process make the exporter search once in half a minute, however many there are."""
    walks = 0
    walk = ProcessTable._numbers

    def counted(self: ProcessTable):
        nonlocal walks
        walks += 1
        return walk(self)

    monkeypatch.setattr(ProcessTable, "_numbers", counted)
    made = table(proc)
    for second in range(60):
        made.facts([Process(1000, 9000 + n + second, 5) for n in range(100)], float(second))
    assert walks == 2
    # One that is found later is found.
    proc.add(4000, 300, 1000, POD, inner=7)
    assert facts(made, Process(1000, 7, 300), 61.0).member_of == CgroupMembership(pod_uid=UID)


def test_a_process_that_is_moved(proc: Proc) -> None:
    """Its new cgroup is seen within a minute or two; its start stays."""
    proc.add(17, 300, 1000)
    made, process = table(proc), Process(1000, 17, 300)
    before = facts(made, process)
    assert before.member_of is None
    (proc.folder / "17" / "cgroup").write_text(SLURM)
    assert facts(made, process, 30.0).member_of is None
    after = facts(made, process, 61.0)
    assert (after.member_of, after.start_s) == (CgroupMembership(slurm_job="4711"), before.start_s)


def test_what_a_process_may_do_to_its_own_files(proc: Proc) -> None:
    """Names that are no UTF-8, lines without end and numbers that are none are read to a bound and cost nothing."""
    proc.add(17, 300, 1000, SLURM)
    (proc.folder / "17" / "cgroup").write_bytes(b"0::/\xff\n" + b"x" * (process_facts._MOST_BYTES + 10))
    assert facts(table(proc), Process(1000, 17, 300)).member_of is None
    (proc.folder / "17" / "stat").write_bytes(b"17 (\xff) S")
    assert facts(table(proc), Process(1000, 17, 300)).start_s is None


def test_a_name_service_that_does_not_answer(proc: Proc) -> None:
    """It costs a moment once, and users have numbers meanwhile; the name is there when it comes."""
    answer = threading.Event()
    asked: list[int] = []

    def slow(uid: int) -> str:
        asked.append(uid)
        answer.wait(60)
        return "alice"

    names = UserNames(slow)
    begun = time.monotonic()
    assert [names.name(uid) for uid in (1000, 1000, 1001, 1000)] == [
        "uid:1000",
        "uid:1000",
        "uid:1001",
        "uid:1000",
    ]
    assert time.monotonic() - begun < 30
    assert asked == [1000]
    answer.set()
    assert names._names._asking is not None
    names._names._asking.join(60)
    assert names.name(1000) == "alice"


def test_who_was_unknown_is_asked_about_again() -> None:
    """glibc knows nobody, and no reason, where no descriptor is left or a directory server is away: that passes."""
    answers, asked, now = iter([None, None, 1000]), list[str](), [0.0]

    def look_up(name: str) -> int | None:
        asked.append(name)
        return next(answers)

    service = NameService(look_up, lambda: now[0])
    found = []
    for second in range(0, 301, 20):
        now[0] = second
        found.append(service.find("ann"))
    assert found == [None] * 6 + [1000] * 10
    assert asked == ["ann"] * 3


def test_a_real_process(tmp_path: Path) -> None:
    """This very process, in the real /proc: its user, and its start by another route."""
    snapshot = read(TelemetryFile(tmp_path))
    found = ProcessTable().facts([snapshot], 0.0)[snapshot.process]
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    boot_s = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime")
    )
    assert found.start_s == pytest.approx(boot_s + ticks / HERTZ, abs=3)
    assert found.user == UserNames().name(os.getuid())


# From claims and facts to series.


def read(file: TelemetryFile) -> TelemetrySnapshot:
    return PluginTelemetryReader(file.path).read()


SAID = Claim("4711", "physics", "16", "train-0", "ml", UID)


def test_an_environment_that_agrees() -> None:
    """What only the environment knows is added to the kernel's word."""
    known = ProcessFacts("alice", CgroupMembership(slurm_job="4711"), 1.0)
    assert info("w", SAID, known) == WorkloadInfo("w", "4711", "", "", "", "alice", "physics", "16", "cgroup")
    known = ProcessFacts("root", CgroupMembership(pod_uid=UID), 1.0)
    assert info("w", SAID, known) == WorkloadInfo("w", "", "ml", "train-0", UID, "root", "", "", "cgroup")


def test_an_environment_that_contradicts() -> None:
    """A process that claims another job: what the kernel says is taken, and nothing of the environment."""
    other = info("w", SAID, ProcessFacts("mallory", CgroupMembership(slurm_job="9999"), 1.0))
    assert other == WorkloadInfo("w", "9999", user="mallory", source="cgroup")
    other = info("w", SAID, ProcessFacts("mallory", CgroupMembership(pod_uid=STATIC), 1.0))
    assert other == WorkloadInfo("w", pod_uid=STATIC, user="mallory", source="cgroup")


def test_an_environment_alone() -> None:
    """Without a cgroup of a job its word stands, marked as such; the user is the kernel's still."""
    assert info("w", SAID, ProcessFacts("alice")) == WorkloadInfo(
        "w", "4711", "ml", "train-0", UID, "alice", "physics", "16", "environment"
    )


def test_claims_are_made_plausible(tmp_path: Path) -> None:
    """What is no job number, DNS name or printable text is nothing; a file of an older plugin says nothing."""
    file = TelemetryFile(tmp_path)
    assert claim(read(file)) == Claim()
    good = {"slurm_job": b"4711", "account": b"physics", "pod_name": b"train-0", "pod_namespace": b"ml"}
    file.put(Table.JOB, 0, state=1, nodes=16, pod_uid=UID.encode(), **good)
    assert claim(read(file)) == SAID
    bad = {"slurm_job": b"47 11", "account": b"a\nb", "pod_name": b"A/b", "pod_namespace": b"a.b"}
    file.put(Table.JOB, 0, nodes=2**32 - 1, pod_uid=b"x" * 36, **bad)
    assert claim(read(file)) == Claim()
    file.header["tables"]["capacity"][0][Table.JOB] = 0
    file.header["tables"]["record_size"][0][Table.JOB] = 0
    assert claim(read(file)) == Claim()


def test_series_of_a_host(tmp_path: Path) -> None:
    """Processes that agree are one series; of one user there are so many at most, and another's are untouched."""
    known = {}
    snapshots = []
    for number in range(MOST_PER_OWNER + 20):
        file = TelemetryFile(tmp_path, 100 + number)
        file.put(Table.JOB, 0, state=1, account=f"a{number}".encode())
        snapshots.append(read(file))
        file.path.unlink()
        known[snapshots[-1].process] = ProcessFacts("mallory", None, 50.0 + number)
    honest = [
        TelemetrySnapshot(**(vars(read(TelemetryFile(tmp_path, 10 + n, "honest"))) | {"owner": 1000}))
        for n in range(2)
    ]
    for number, snapshot in enumerate(honest):
        known[snapshot.process] = ProcessFacts("alice", CgroupMembership(slurm_job="4711"), 90.0 - number)
    infos, started = workload_infos([*snapshots, *honest], [], known)
    assert sum(i.user == "mallory" for i in infos) == MOST_PER_OWNER
    assert [i for i in infos if i.user == "alice"] == [
        WorkloadInfo("honest", "4711", user="alice", source="cgroup")
    ]
    assert started == {"honest": 89.0, "train-7": 50.0}
    exposition = Exposition()
    exposition.declare(METRICS)
    expose_workloads(infos, started, exposition)
    shown = exposition.render().decode()
    assert 'fabricpulse_workload_info{workload="honest",slurm_job="4711"' in shown
    assert 'fabricpulse_workload_start_timestamp_seconds{workload="honest"} 89' in shown
