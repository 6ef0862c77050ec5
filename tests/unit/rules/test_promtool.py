"""The rules behave as their promtool tests say, and the tests notice when they do not."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fabricpulse.rules.files import rendered_files, write
from fabricpulse.rules.mixin import compile_mixin

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.prometheus
TESTS = sorted((ROOT / "rules" / "tests").glob("*.yaml"))


def find_promtools() -> list[str]:
    """Each promtool that there is: .tools/ (Debian's), .tools/newer (the newest), PATH."""
    folders = [ROOT / ".tools" / "usr" / "bin", ROOT / ".tools" / "newer" / "usr" / "bin"]
    found = [str(folder / "promtool") for folder in folders if (folder / "promtool").is_file()]
    on_path = shutil.which("promtool")
    return found or ([on_path] if on_path else [])


PROMTOOLS: list[str | None] = [*find_promtools()] or [None]


@pytest.fixture(
    params=PROMTOOLS, ids=lambda path: "promtool" if path is None else path.removeprefix(f"{ROOT}/")
)
def promtool(request: pytest.FixtureRequest) -> str:
    """Path of a promtool."""
    if request.param is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    return str(request.param)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=60
    )


def test_there_are_tests() -> None:
    """An empty folder would pass everything below."""
    assert len(TESTS) >= 5


def test_check(promtool: str) -> None:
    """promtool accepts every rule file, with all its lints."""
    files = sorted((ROOT / "rules" / "alerts").glob("*.yaml")) + sorted(
        (ROOT / "rules" / "recording").glob("*.yaml")
    )

    result = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *files)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_unit(promtool: str, path: Path) -> None:
    """The unit tests of a group pass."""
    result = run(promtool, "test", "rules", path)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("group", "setting", "value"),
    [
        ("nic", "flapThreshold", 2),
        ("nic", "flapThreshold", 4),
        ("nic", "flapWindow", "2m"),
        ("nic", "flapKeepFiringFor", "1m"),
        ("nic", "lastValueWindow", "15s"),
        ("clock", "clockBoundSeconds", 0.0004),
        ("clock", "clockBoundSeconds", 0.0007),
        ("clock", "clockBoundWideFor", "10m"),
        ("clock", "clockUnsynchronizedFor", "30s"),
        ("job", "laneDownFor", "2m"),
        ("job", "laneFailoverThreshold", 3),
        ("job", "laneFailoverThreshold", 6),
        ("pipeline", "exporterDownFor", "10s"),
        ("pipeline", "collectorFailingFor", "5m"),
        ("pipeline", "remediationFailedWindow", "1h"),
        ("pipeline", "jobSelector", ""),
    ],
)
def test_mutant_is_caught(tmp_path: Path, group: str, setting: str, value: object) -> None:
    """A rule with another threshold, window or duration fails its tests: they do test it."""
    promtool = PROMTOOLS[0]
    if promtool is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    write(tmp_path, rendered_files(compile_mixin(settings={setting: value})))
    test = tmp_path / "tests" / f"{group}.yaml"
    test.parent.mkdir()
    test.write_text((ROOT / "rules" / "tests" / f"{group}.yaml").read_text())

    assert run(promtool, "test", "rules", test).returncode != 0
