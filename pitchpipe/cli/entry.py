"""The script `pitchpipe`: nothing is imported before it can be interrupted quietly, because imports take a second."""

from __future__ import annotations

import sys


def run() -> None:
    """The command line, with a plain exit for a Ctrl-C that comes while it is imported."""
    try:
        from pitchpipe.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
