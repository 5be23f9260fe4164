"""The child that runs a file's own framework: `python -m pitchpipe.model.reference.child FOLDER PARENT BYTES`."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitchpipe.arrays import load_arrays
from pitchpipe.model.reference.expected import CannotRun, Runner, expect
from pitchpipe.processes.lifeline import end_with_parent
from pitchpipe.wire.job import ModelFormat


def runner_of(asked: Mapping[str, Any], weights: Mapping[str, Any], examples: list[Any]) -> Runner:
    """The framework with the model. Raises ImportError where it is not installed, CannotRun, and what it raises."""
    path, model_format = Path(asked["path"]), ModelFormat(asked["format"])
    match model_format:
        case ModelFormat.ONNX:
            from pitchpipe.model.reference.onnx_runner import OnnxRunner

            return OnnxRunner(path, weights, examples)
        case ModelFormat.PT2 | ModelFormat.TORCHSCRIPT:
            from pitchpipe.model.reference.torch_runner import from_file

            return from_file(path, script=model_format is ModelFormat.TORCHSCRIPT, examples=examples)
        case ModelFormat.STABLEHLO:
            from pitchpipe.model.reference.jax_runner import ModuleRunner

            return ModuleRunner(path.read_bytes(), asked["specs"])
        case ModelFormat.TFLITE:
            from pitchpipe.model.reference.tflite_runner import TfliteRunner

            return TfliteRunner(path.read_bytes())
    raise CannotRun(f"no framework runs {model_format} files")


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
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
    _main(Path(sys.argv[1]))
