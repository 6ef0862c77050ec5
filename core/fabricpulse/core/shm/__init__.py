"""Shared memory: Python mirrors of core/include/fabricpulse/*.h, held equal by tests/unit/core/test_layouts.py."""
