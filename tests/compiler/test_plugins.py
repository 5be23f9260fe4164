"""Whatever the SDK finds by name is there, with the compiler and PyTorch installed."""

from importlib.metadata import entry_points

import pytest

import pitchpipe
from pitchpipe.processes.plugins import GROUP, step


@pytest.mark.parametrize("name", sorted(entry.name for entry in entry_points(group=GROUP)))
def test_every_registered_step_loads_and_says_what_it_does(name: str) -> None:
    assert step(name).__doc__


def test_every_exported_name_is_there_and_documented() -> None:
    for name in pitchpipe.__all__:
        assert getattr(pitchpipe, name).__doc__
