"""What a result must say of where it was made, and the arguments every benchmark takes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Collection
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pitchpipe.errors import MeasurementFailed, NoDevice
from pitchpipe.processes.cores import usable_cores
from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.target import Target
from workers.device import detect_target, fingerprint

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "benchmarks" / "models.py"
"""The models that a script runs unless `--models` names another file."""
SHOWN = (
    *("pitchpipe", "apache-tvm", "apache-tvm-ffi", "xgboost-cpu"),
    *("torch", "transformers", "onnx", "onnxruntime", "openvino"),
)


def environment(*, gpu: bool = False, **budget: object) -> dict[str, Any]:
    """Machine (with the first GPU, if it is measured), versions, commit, measure version, date, load before the run, and the
    budget given. Raises MeasurementFailed where a GPU is asked for and there is none."""
    device = fingerprint()
    found = {}
    for name in SHOWN:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "device": device.model,
        "mcpu": detect_target("llvm").mcpu,
        "cores": device.cores,
        "caches": device.caches,
        "kernel": device.driver,
        "python": platform.python_version(),
        "versions": found,
        "commit": commit(),
        "measure_version": MEASURE_VERSION,
        "threads": kernel_threads(),
        "load_before": os.getloadavg()[0],
        "date": datetime.now(UTC).date().isoformat(),
        "budget": budget,
        **({"gpu": fingerprint("cuda").model_dump(mode="json")} if gpu else {}),
    }


def commit(root: Path = ROOT) -> str:
    """What was measured: the commit that is checked out, with `+` where files other than results differ from it.

    BENCHMARK_COMMIT names it where the files lie without their repository, or in another.
    """
    if told := os.environ.get("BENCHMARK_COMMIT"):
        return told
    asked = ["git", "-C", str(root), "-c", f"safe.directory={root}"]
    changes = ["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)benchmarks/results"]
    try:
        head, changed = (
            subprocess.run([*asked, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], changes)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + "+" * bool(changed)


def kernel_threads() -> int:
    """Threads of a compiled program here and in processes that this one starts: TVM_NUM_THREADS, or as many as cores."""
    return int(os.environ.setdefault("TVM_NUM_THREADS", str(usable_cores())))


def target_here(kind: str) -> Target:
    """The target of this machine; ends the script where `--target cuda` finds no GPU."""
    try:
        return detect_target(kind)
    except (MeasurementFailed, NoDevice) as error:
        raise SystemExit(f"--target {kind}: {error}") from error


def parser(text: str | None) -> argparse.ArgumentParser:
    """A parser with the two options of every script. From here on it is settled how many threads a program has."""
    kernel_threads()
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="one JSON object on stdout: environment, rows, summary")
    made.add_argument("--quick", action="store_true", help="a smaller run with the same keys")
    return made


def models_parser(text: str | None) -> argparse.ArgumentParser:
    """The same for a script that runs whole models: with `--models`, the file they are taken from."""
    made = parser(text)
    made.add_argument(
        "--models",
        type=Path,
        default=MODELS,
        help="a Python file with MODELS: name -> builder() -> (module, example inputs); default: benchmarks/models.py",
    )
    return made


def names_chosen(
    arguments: argparse.ArgumentParser, options: argparse.Namespace, known: Collection[str], most: int | None = None
) -> list[str]:
    """The names in `--only`, else the first `most` that are known, of a `--quick` run the first. Ends the script for a name
    that is not known."""
    names = options.only.split(",") if options.only else [*known][: 1 if options.quick else most]
    if unknown := {*names} - {*known}:
        arguments.error(f"unknown: {', '.join(sorted(unknown))}")
    return names


def show(result: dict[str, Any], as_json: bool) -> None:
    """Prints a result: one line of JSON, or rows to read."""
    if as_json:
        print(json.dumps(result))
        return
    for row in result["rows"]:
        print(
            "  ".join(
                f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    print(json.dumps(result["summary"], indent=1))
