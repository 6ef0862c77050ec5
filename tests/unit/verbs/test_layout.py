"""The Python mirror of the interposer's telemetry is the C++ header, field by field."""

import shutil
from pathlib import Path

import pytest
from tests.fixtures.native.c_layout import compiled_layout, mirrored_layout

from fabricpulse.plugin_ipc import verbs


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_field_offsets_equal_those_of_the_compiler(tmp_path: Path) -> None:
    """Offset and size of each field, size of each struct, magic, version, counts of opcodes and statuses agree."""
    numbers = {
        "magic": "FP_VERBS_TELEMETRY_MAGIC",
        "version": "FP_VERBS_TELEMETRY_VERSION",
        "opcodes": "FP_VERBS_OPCODES",
        "statuses": "FP_VERBS_STATUSES",
    }
    compiled = compiled_layout(
        tmp_path, "fabricpulse/verbs_telemetry.h", verbs.LAYOUTS, numbers, ["verbs_interposer/include"]
    )
    assert [compiled.pop(name) for name in numbers] == [
        verbs.MAGIC,
        verbs.VERSION,
        verbs.OPCODE_SLOTS,
        len(verbs.STATUSES),
    ]
    for struct, layout in verbs.LAYOUTS.items():
        assert mirrored_layout(layout) == compiled[struct], struct
