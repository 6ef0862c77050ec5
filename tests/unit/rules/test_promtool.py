"""The rules behave as their promtool tests say."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
        [str(part) for part in command],
        # It lives for seconds: to collect garbage less often saves a quarter of its processor time.
        env=os.environ | {"GOGC": "400"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
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
