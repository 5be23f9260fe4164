"""Python's garbage collector in a process that runs one command or one step and ends.

What such a process imports stays until its end, yet the collector looks through all of it again and again while it is
imported, and several times more when the interpreter ends. That was half of the processor time of a process that imports
PyTorch and does nothing, and a third of that of the server.
"""

from __future__ import annotations

import atexit
import gc

USUAL = gc.get_threshold()
RARE = 250_000
"""Objects that may be made, less those that are gone, before the collector looks for circles among them."""


def collect_rarely() -> None:
    """From now on, and not at all at the end, where the kernel takes the memory back. Idempotent."""
    gc.set_threshold(RARE, *USUAL[1:])
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
