"""Test modules are compiled before a run has several processes."""

from pathlib import Path

import pytest
from tests.fixtures.native import compiled_tests
from tests.fixtures.native.compiled_tests import compile_tests, not_compiled


def test_each_is_compiled_once_and_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pytest itself does it; few are left to the run."""
    modules = [tmp_path / "tests" / f"test_{name}.py" for name in "ab"]
    modules[0].parent.mkdir()
    for module in modules:
        module.write_text("def test_it():\n    assert True\n")
    compile_tests(tmp_path, 1)
    assert not_compiled(tmp_path) == modules
    monkeypatch.setattr(compiled_tests, "WORTH", 1)
    compile_tests(tmp_path, 1)
    assert not_compiled(tmp_path) == []
    modules[1].write_text("def test_other():\n    assert True\n")
    assert not_compiled(tmp_path) == modules[1:]
