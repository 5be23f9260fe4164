"""One warning for each thing that goes wrong, however often it does; never an exception in the program's own call."""

from __future__ import annotations

import threading
import warnings

_said: set[str] = set()
_lock = threading.Lock()


class BackendWarning(RuntimeWarning):
    """The backend could not do its work: the program runs as it would without."""


def warn_once(subject: str, message: str) -> None:
    """Warns of a subject the first time in this process."""
    with _lock:
        if subject in _said:
            return
        _said.add(subject)
    try:
        warnings.warn(f"pitchpipe: {message}", BackendWarning, stacklevel=2)
    except BackendWarning:  # warnings are errors here; the program is to run all the same
        return


def forget_warnings() -> None:
    """What was said may be said again."""
    with _lock:
        _said.clear()
