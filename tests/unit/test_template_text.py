"""Texts of templates: one form, and nothing in them but names that are known and numbers in their bounds."""

from __future__ import annotations

import json

import pytest

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate
from tuner.schedule.trace import decode_trace
from tuner.templates.text import CONTRACTION, MAX_BYTES, TEMPLATES, is_template, parse

ARGUMENTS = {"rows": 64, "columns": 64, "step": 32, "parts": 2, "stages": 3, "warps": 4, "group": 0, "early": 1}


def text(template: object = CONTRACTION, arguments: object = None, **changed: object) -> str:
    return json.dumps({"template": template, "args": arguments or {**ARGUMENTS, **changed}}, indent=1)


def test_a_text_has_one_canonical_form_whatever_its_order_and_spacing() -> None:
    one = decode_trace(text())
    other = decode_trace(json.dumps({"args": dict(reversed(ARGUMENTS.items())), "template": CONTRACTION}))
    assert one == other == decode_trace(one)
    assert parse(one).arguments == {**ARGUMENTS, "cluster": 0}
    assert Candidate.of("0" * 64, one).digest == Candidate.of("0" * 64, other).digest


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (text("contraction-0"), "no template"),
        (text(7), "no template"),
        (text(rows=48), "rows"),
        (text(rows=True), "rows"),
        (text(rows=64.0), "rows"),
        (text(parts=0), "parts"),
        (text(parts=1 << 70), "parts"),
        (text(source="import os"), "takes"),
        (text(arguments={"rows": 64}), "takes"),
        ('{"template":"contraction-1"}', "args"),
        ('{"template":"contraction-1","args":[]}', "args"),
        ('{"template":"contraction-1","args":{},"source":""}', "args"),
        ("{", "JSON"),
        ("{" + " " * MAX_BYTES, "cap"),
        ("{" * 4000, "JSON"),
    ],
)
def test_anything_else_is_refused_by_name(wrong: str, named: str) -> None:
    with pytest.raises(InvalidTrace, match=named):
        decode_trace(wrong)


def test_traces_are_no_templates() -> None:
    assert not is_template(BASELINE_TRACE)
    assert is_template(text())
    assert is_template(text().encode())


def test_arguments_are_few_small_numbers() -> None:
    for name, arguments in TEMPLATES.items():
        assert name.rpartition("-")[2].isdigit(), "a template has a version"
        for values in arguments.values():
            assert all(type(value) is int and 0 <= value <= 1 << 16 for value in values)
