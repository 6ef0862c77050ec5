"""The Python mirror of the plugin's telemetry is the C++ header, field by field."""

import shutil
from pathlib import Path

import pytest
from tests.fixtures.native.c_layout import compiled_layout, mirrored_layout

from fabricpulse.plugin_ipc import telemetry


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_field_offsets_equal_those_of_the_compiler(tmp_path: Path) -> None:
    """Offset and size of each field, size of each struct, magic and version agree; no field of a dtype is unknown."""
    numbers = {"magic": "FP_PLUGIN_TELEMETRY_MAGIC", "version": "FP_PLUGIN_TELEMETRY_VERSION"}
    includes = ("nccl_plugin/include", "core/include")
    compiled = compiled_layout(
        tmp_path, "fabricpulse/plugin_telemetry.h", telemetry.LAYOUTS, numbers, includes
    )
    assert compiled.pop("magic") == telemetry.MAGIC
    assert compiled.pop("version") == telemetry.VERSION
    for struct, layout in telemetry.LAYOUTS.items():
        assert mirrored_layout(layout) == compiled[struct], struct
