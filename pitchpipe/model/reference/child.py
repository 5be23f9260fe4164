"""The child that runs a file's own framework: `python -m pitchpipe.model.reference.child FOLDER PARENT BYTES`."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pitchpipe.arrays import load_arrays
from pitchpipe.frontends import FRONTENDS
from pitchpipe.model.reference.expected import CannotRun, ModelFile, Runner, expect
from pitchpipe.processes.collector import collect_rarely
from pitchpipe.processes.lifeline import end_with_parent
from pitchpipe.wire.job import ModelFormat


def runner_of(asked: Mapping[str, Any], weights: Mapping[str, Any], examples: list[Any]) -> Runner:
    """The framework with the model. Raises ImportError where it is not installed, CannotRun, and what it raises."""
    frontend = FRONTENDS[ModelFormat(asked["format"])]
    if not frontend.framework:
        raise CannotRun(f"no framework runs {frontend.format} files")
    file = ModelFile(path=Path(asked["path"]), weights=weights, examples=examples, specs=asked["specs"])
    made: Runner = resolve_name(frontend.framework)(file)
    return made


def _main(folder: Path) -> None:
    asked = json.loads((folder / "asked.json").read_text())
    weights, examples = load_arrays(folder / "weights.npz"), load_arrays(folder / "examples.npz")
    try:
        runner = runner_of(asked, weights, list(examples.values()))
        expect(runner, asked["seed"], asked["most"]).write(folder / "expected.npz")
    except CannotRun as error:
        (folder / "cannot").write_text(str(error))
    except ImportError as error:
        (folder / "cannot").write_text(f"{error.name} is not installed")
    except Exception as error:  # noqa: BLE001 - whatever a framework raises for a file that it does not take
        (folder / "cannot").write_text(f"its framework does not take the file: {' '.join(str(error).split())[:300]}")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    collect_rarely()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
    _main(Path(sys.argv[1]))
