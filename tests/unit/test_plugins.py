"""Steps found by name: a missing one says what to install."""

import pytest

from pitchpipe.processes.plugins import MissingExtra, step


def test_a_step_that_nobody_registered_is_named() -> None:
    with pytest.raises(MissingExtra, match="juggle"):
        step("juggle")
