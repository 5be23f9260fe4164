"""Steps found by name: every one that is registered can be loaded, and a missing one says what to install."""

from importlib.metadata import entry_points

import pytest

from pitchpipe.processes.plugins import GROUP, MissingExtra, step


@pytest.mark.parametrize("name", sorted(entry.name for entry in entry_points(group=GROUP)))
def test_every_registered_step_loads_and_says_what_it_does(name: str) -> None:
    assert step(name).__doc__


def test_a_step_that_nobody_registered_is_named() -> None:
    with pytest.raises(MissingExtra, match="juggle"):
        step("juggle")
