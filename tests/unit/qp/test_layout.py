"""The Python mirror of the plugin's telemetry is the C++ header, field by field."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fabricpulse.plugin_ipc import telemetry

ROOT = Path(__file__).parents[3]


def _compiled_layout(folder: Path) -> dict[str, Any]:
    lines = [
        '#include "fabricpulse/plugin_telemetry.h"',
        "#include <cstddef>",
        "#include <cstdio>",
        "int main() {",
    ]
    lines.append('  std::printf("{");')
    for number, (struct, layout) in enumerate(telemetry.LAYOUTS.items()):
        comma = "," if number else ""
        lines.append(f'  std::printf("{comma}\\"{struct}\\":{{\\"sizeof\\":[%zu,0]", sizeof({struct}));')
        for field in layout.names or ():
            where = f"offsetof({struct}, {field}), sizeof({struct}::{field})"
            lines += [f'  std::printf(",\\"{field}\\":[%zu,%zu]", {where});']
        lines.append('  std::printf("}");')
    for name, value in (("magic", "FP_PLUGIN_TELEMETRY_MAGIC"), ("version", "FP_PLUGIN_TELEMETRY_VERSION")):
        lines.append(f'  std::printf(",\\"{name}\\":%llu", (unsigned long long){value});')
    lines += ['  std::printf("}\\n");', "}"]
    source = folder / "layout.cc"
    source.write_text("\n".join(lines))
    program = folder / "layout"
    include = ROOT / "nccl_plugin" / "include"
    core = ROOT / "core" / "include"
    subprocess.run(["c++", "-std=c++17", f"-I{include}", f"-I{core}", source, "-o", program], check=True)
    compiled: dict[str, Any] = json.loads(subprocess.run([program], check=True, capture_output=True).stdout)
    return compiled


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_every_field_lies_where_the_compiler_puts_it(tmp_path: Path) -> None:
    """Offset and size of each field, size of each struct, magic and version agree; no field of a dtype is unknown."""
    compiled = _compiled_layout(tmp_path)
    assert compiled.pop("magic") == telemetry.MAGIC
    assert compiled.pop("version") == telemetry.VERSION
    for struct, layout in telemetry.LAYOUTS.items():
        mirrored = {"sizeof": [layout.itemsize, 0]}
        for name, (field, offset, *_) in (layout.fields or {}).items():
            mirrored[name] = [offset, field.itemsize]
        assert mirrored == compiled[struct], struct
