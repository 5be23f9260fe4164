"""NVRTC, the compiler of device code, and CUDA's headers: where they are on this machine. Imports no TVM.

Both come with the extra `cuda` from the registry (`INSTALL`); a toolkit that is installed is found too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

INSTALL = "pip install 'pitchpipe[cuda]'"


def library() -> Any:
    """The module cuda.bindings.nvrtc with a library behind it; None without it, or without headers."""
    if os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc").lower() != "nvrtc" or not include_folders():
        return None
    try:
        found: Any = importlib.import_module("cuda.bindings.nvrtc")
        found.nvrtcVersion()
    except Exception:  # noqa: BLE001 - ImportError, or the package's own way of saying that the library is missing
        return None
    return found


def version() -> tuple[int, int] | None:
    """Of the NVRTC that `library` finds, as CUDA's version."""
    if (found := library()) is None:
        return None
    _, major, minor = found.nvrtcVersion()
    return int(major), int(minor)


def include_folders() -> list[str]:
    """Folders of CUDA's headers and of its standard library (CCCL); empty where they are not installed.

    Those that an environment variable names, else those of the registry, which are of one version with NVRTC, else those of
    a toolkit.
    """
    roots = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    if (package := importlib.util.find_spec("nvidia")) is not None:
        roots += [Path(place) / "cu13" for place in package.submodule_search_locations or ()]
    if (nvcc := shutil.which("nvcc")) is not None:
        roots.append(Path(nvcc).resolve().parents[1])
    roots.append(Path("/usr/local/cuda"))
    for root in roots:
        places = [root / "include", *(root / "targets").glob("*/include")]
        places += [place / "cccl" for place in places]
        found = [str(place) for place in places if place.is_dir()]
        if any((Path(place) / "cuda_runtime.h").is_file() for place in found):
            return found
    return []


def describe() -> str:
    """One line for `pitchpipe doctor`. Raises FileNotFoundError, saying what to type, where nothing compiles device code."""
    if (found := version()) is not None:
        return f"{found[0]}.{found[1]}, headers in {include_folders()[0]}"
    if (nvcc := shutil.which("nvcc")) is not None:
        return f"none; nvcc is used, more slowly: {nvcc}"
    missing = "CUDA's headers" if not include_folders() else "the library, or cuda-bindings"
    raise FileNotFoundError(f"{missing} not found: {INSTALL}")
