"""Models run by the framework that they came from: what a compiled model's outputs are compared with.

    source.py      what a model came from, and how its framework is asked: in this process, or in a child for files
    expected.py    input sets, and the framework's outputs on them; travels in one file
    child.py       the child that runs a file
    *_runner.py    one framework each

Importing this package imports no framework.
"""

from __future__ import annotations

from pitchpipe.model.reference.expected import CannotRun, Expected
from pitchpipe.model.reference.source import FileSource, FunctionSource, ModuleSource, NoSource, Source

__all__ = ["CannotRun", "Expected", "FileSource", "FunctionSource", "ModuleSource", "NoSource", "Source"]
