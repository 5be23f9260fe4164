"""Lists of arrays in one file of NumPy's, without pickle, element types included that NumPy has no name for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_TYPES = "types"


def on_host(array: Any) -> np.ndarray:
    """The array for NumPy, copied only where it lies elsewhere: torch's tensors may be on a GPU, and of bfloat16."""
    import numpy as np

    if hasattr(array, "resolve_neg"):
        from pitchpipe.torch_operators.arrays import to_array

        return to_array(array)
    return np.asarray(array)


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name; names are any text, as weights have."""
    import numpy as np

    stored = {f"a{number}": on_host(array) for number, array in enumerate(arrays.values())}
    names = [[name, str(array.dtype)] for name, array in zip(arrays, stored.values(), strict=True)]
    # NumPy's files know bfloat16 as two bytes of no type.
    plain = {key: array if array.dtype.kind != "V" else array.view(_bits(array)) for key, array in stored.items()}
    with path.open("wb") as file:
        np.savez(file, **{_TYPES: np.array(names, dtype=np.str_).reshape(-1, 2)}, **plain)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `save_arrays` wrote. Raises OSError, ValueError or KeyError for anything else."""
    import numpy as np

    found = {}
    with np.load(path, allow_pickle=False) as stored:
        for number, (name, dtype) in enumerate(stored[_TYPES]):
            array = stored[f"a{number}"]
            if str(array.dtype) != dtype:
                array = array.view(numpy_dtype(str(dtype)))
            found[str(name)] = array
    return found


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of that name; ml_dtypes, where it is installed, gives it those that it has no name for, such as bfloat16.

    Raises TypeError for a name that stands for none.
    """
    import numpy as np

    with suppress(ImportError):
        importlib.import_module("ml_dtypes")
    return np.dtype(name)


def _bits(array: Any) -> str:
    return f"u{array.dtype.itemsize}"
