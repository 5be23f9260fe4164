"""The table of frontends: it is whole, and what it names is there."""

from __future__ import annotations

import ast
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from pitchpipe.frontends import FRONTENDS, SUFFIXES, Frontend
from pitchpipe.wire.job import ModelFormat

ROOT = Path(__file__).resolve().parents[2]


def test_every_format_has_a_frontend_and_no_suffix_has_two() -> None:
    assert set(FRONTENDS) == set(ModelFormat)
    assert len(SUFFIXES) == sum(len(each.suffixes) for each in FRONTENDS.values())


@pytest.mark.parametrize("frontend", FRONTENDS.values(), ids=lambda each: each.format)
def test_what_it_names_is_there(frontend: Frontend) -> None:
    for named in (frontend.reader, frontend.framework):
        if named:
            module, _, function = named.partition(":")
            spec = find_spec(module)  # Without importing it: most need a compiler.
            assert spec is not None
            assert spec.origin is not None
            tree = ast.parse(Path(spec.origin).read_text())
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert bool(frontend.library) == bool(frontend.extra)
    assert frontend.extra in ("", *extras)


def test_code_is_never_sent() -> None:
    assert all(each.is_local for each in FRONTENDS.values() if each.runs_code)
