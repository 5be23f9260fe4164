"""What `--input` of a TorchScript file may say."""

from __future__ import annotations

import pytest

from pitchpipe.errors import InvalidInput
from pitchpipe.model.local import parse_input


@pytest.mark.parametrize(
    ("text", "shape"), [("float32[1,3,224,224]", (1, 3, 224, 224)), ("int64[7]", (7,)), ("bool[]", ())]
)
def test_an_input_is_a_type_and_a_shape(text: str, shape: tuple[int, ...]) -> None:
    found = parse_input(text)
    assert (found.shape, str(found.dtype)) == (shape, text.partition("[")[0])


@pytest.mark.parametrize(
    "text", ["", "float32", "float[1]", "1x3", "int64[0]", "int64[1,]", "int64[-1]", "uint8[99999,99999]"]
)
def test_anything_else_is_refused_with_what_was_written(text: str) -> None:
    with pytest.raises(InvalidInput, match=f"{text[:5]}.*(float32|elements)".replace("[", r"\[")):
        parse_input(text)
