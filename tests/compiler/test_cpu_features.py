"""The table of CPUs that look-ups judge by is what the installed LLVM says."""

from __future__ import annotations

import json

from tuner.target_kinds.cpu.features import TABLE, table


def test_the_committed_table_is_the_compilers() -> None:
    assert json.loads(TABLE.read_text()) == table(), "run `python -m tuner.target_kinds.cpu.features`"
