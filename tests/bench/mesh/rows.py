"""Rows of the mesh benchmark."""

from tests.bench.rows import Rows

rows = Rows("mesh")
report = rows.report
