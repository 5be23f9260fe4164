"""The models of a Python file: MODELS, name -> builder() -> (module, example inputs)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Builder = Callable[[], Any]


def models_of(path: Path | str) -> dict[str, Builder]:
    """MODELS of the file, imported under a name that torch.compile can import: it looks for the module of each class."""
    name = f"models_of_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Builder] = module.MODELS
    return found
