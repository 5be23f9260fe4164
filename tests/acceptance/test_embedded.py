"""The embedded service is watched: a command does not wait for a process that is gone."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from pitchpipe.embedded import Embedded
from pitchpipe.errors import Unreachable
from pitchpipe.wire.target import Target
from tests.patience import PATIENCE_SECS


@pytest.mark.long
def test_a_worker_that_ends_by_itself_ends_the_command_with_its_last_words(tmp_path: Path, this_target: Target) -> None:
    embedded = Embedded(f"sqlite:///{tmp_path / 'tune.db'}", this_target)
    deadline = time.monotonic() + PATIENCE_SECS

    def wait() -> None:
        with embedded as client:
            embedded._processes["worker"].send_signal(signal.SIGKILL)
            while time.monotonic() < deadline:
                client.workers()
                time.sleep(0.1)

    with pytest.raises(Unreachable, match="the embedded worker"):
        wait()
    assert embedded._processes == {}
