"""Opening a saved exported program, with the cause where torch cannot."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pitchpipe.errors import InvalidModel

_OPERATOR = re.compile(r"target='torch\.ops\.(\w+)\.(\w+)")
"""In what torch says of a node whose operator nobody has registered."""


def load_program(path: Path) -> Any:
    """A saved torch.export.ExportedProgram. Loading one can run code: the caller trusts it.

    Raises InvalidModel, which names an operator of a library that is not imported here.
    """
    with _logged() as causes, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own deprecations
        try:
            return torch.export.load(path)
        except Exception as error:  # zipfile, pickle, JSON and torch errors
            said = str(next(iter(causes), error)).strip()
            if found := _OPERATOR.search(said):
                advice = "a library registers it: give the module in place of the file, where that library is imported"
                raise InvalidModel(
                    f"{path.name}: operator {found[1]}::{found[2]} is not known here; {advice}"
                ) from error
            line = said.partition("\n")[0][:300]
            raise InvalidModel(f"{path.name} is not a torch.export archive: {line}") from error


@contextlib.contextmanager
def _logged() -> Iterator[list[BaseException]]:
    """The errors that torch.export only logs: it goes on to look for an older format, and raises that it is none."""
    found = list[BaseException]()

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            found.append(record.exc_info[1])
        return False

    log = logging.getLogger("torch.export")
    log.addFilter(keep)
    try:
        yield found
    finally:
        log.removeFilter(keep)
