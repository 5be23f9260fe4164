"""Tensors and modules as text of a program: small ones as literals, large ones as files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

INLINE_ELEMENTS = 64
"""Largest tensor that stands in the program itself."""
INLINE_TEXT = 30_000
"""Longest module that does, in characters of TVM JSON."""

IMPORTS = """
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TVM_NUM_THREADS", str(os.cpu_count()))  # on its own TVM would use half of them
"""
PREAMBLE = "HERE = Path(__file__).resolve().parent\nnan, inf = float('nan'), float('inf')\n"
"""What the expressions need, beside NumPy as np and pathlib's Path."""


class Literals:
    """Expressions for data in a program called `name`.py in a folder; `store` writes what is beside it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._arrays: dict[str, np.ndarray] = {}
        self._texts: dict[str, str] = {}

    def store(self) -> None:
        """Writes the files beside the program."""
        if self._arrays:
            np.savez(self._folder / f"{self._name}.npz", **self._arrays)  # type: ignore[arg-type]  # names are not options
        for key, text in self._texts.items():
            (self._folder / f"{self._name}.{key}.json").write_text(text)

    def arrays(self, prefix: str, arrays: Mapping[str, np.ndarray]) -> str:
        """A dict of arrays."""
        pairs = enumerate(arrays.items())
        lines = [f"    {key!r}: {self._array(f'{prefix}_{index}', array)},\n" for index, (key, array) in pairs]
        return "{\n" + "".join(lines) + "}" if lines else "{}"

    def list(self, prefix: str, arrays: Sequence[np.ndarray]) -> str:
        """A list of arrays."""
        return "[" + ", ".join(self._array(f"{prefix}_{index}", array) for index, array in enumerate(arrays)) + "]"

    def text(self, key: str, text: str) -> str:
        """A string."""
        if len(text) <= INLINE_TEXT:
            lines = [text[at : at + 100] for at in range(0, len(text), 100)]
            return "(\n" + "".join(f"    {line!r}\n" for line in lines) + ")"
        self._texts[key] = text
        return f"(HERE / '{self._name}.{key}.json').read_text()"

    def _array(self, key: str, array: np.ndarray) -> str:
        kind, shape = array.dtype.name, list(array.shape)
        stored = f"np.load(HERE / '{self._name}.npz')['{key}']"
        if array.dtype.kind == "V":  # a type of ml_dtypes, which NumPy's files do not keep
            self._arrays[key] = np.frombuffer(array.tobytes(), np.uint8)
            return f"{stored}.view(np.dtype({kind!r})).reshape({shape})"
        if array.size <= INLINE_ELEMENTS:
            return f"np.array({array.tolist()!r}, {kind!r}).reshape({shape})"
        self._arrays[key] = array
        return stored


def comments(texts: Iterable[str]) -> str:
    """The lines of texts as comments, whatever is in them."""
    return "\n".join(f"# {line}".rstrip() for text in texts for line in text.splitlines())
