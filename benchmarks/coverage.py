"""Whole models beside eager: which architectures come out right by pitchpipe.load and by torch.compile, and why not.

    python benchmarks/coverage.py --json > benchmarks/results/coverage.json
    python benchmarks/coverage.py --only falcon bit          # some, in full
    python benchmarks/coverage.py --models benchmarks/models.py --ways load
    python benchmarks/coverage.py --work build/coverage.jsonl  # rows that are there already are not made again

Architectures are those of architectures/: small, batch two, random weights whose outputs are neither zero nor chaos. Of
each, on the example inputs, on inputs drawn like them and on edge values (pitchpipe/model/comparison.py says what is equal):

* `load`: exported, built with the compiler's default schedules and run, as pitchpipe.load does where there is no linker;
* `compile`: torch.compile(backend="pitchpipe"), without schedules and waited for, every partition used that is right;
* `train`: a training step by the same, its loss and all gradients (training_step.py).

Each is right, refused (by name, before anything was computed), wrong, failed (raised something else, or ended its
process) or late. `parts_wrong` counts partitions that torch.compile left to PyTorch since what was compiled for them
computed something else: no answer is wrong by it, but the compiler was. `workloads` is a digest of the workloads of what
was loaded, which changes when one of them does. `own_error` is how far eager's outputs are from
its own in float64, for an error that is no mistake. A model runs in a fork of a process that has imported everything, so
a crash or a hang costs its row.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from environment import environment, kernel_threads, parser, show
from model_file import models_of
from training_step import COMPILED, arrays, train

from pitchpipe import sdk
from pitchpipe.deploy import building, identity
from pitchpipe.errors import InvalidModel, PitchpipeError, UnsupportedOperator, UnsupportedShape
from pitchpipe.model import comparison
from pitchpipe.processes.plugins import step
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.ids import json_digest
from workers.device import detect_target

FAMILIES = ("text", "vision", "audio", "recurrent", "images", "layers", "networks")
QUICK = ("bert", "lstm_last_step", "gru_bidirectional", "resnet", "unet", "mamba")
REFUSED = (UnsupportedOperator, UnsupportedShape, InvalidModel)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", help="names of architectures")
    arguments.add_argument(
        "--models", type=Path, help="a file with MODELS, name -> builder, in place of architectures/"
    )
    arguments.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    arguments.add_argument("--work", type=Path, help="file of rows, one a line; added to, so that a run can go on")
    arguments.add_argument(
        "--ways", nargs="+", default=["load", "compile", "train"], choices=["load", "compile", "train"]
    )
    arguments.add_argument("--jobs", type=int, default=2, help="models at a time")
    arguments.add_argument("--limit", type=float, default=900.0, help="seconds that a model may take")
    options = arguments.parse_args()
    builders = models_of(options.models) if options.models else architectures(options.families)
    chosen = QUICK if options.quick and not options.models else builders
    names = options.only or [name for name in builders if name in chosen]
    rows = _kept(options.work)
    _prepare_process()
    waiting = [name for name in names if name not in rows]
    children: dict[str, Child] = {}
    while waiting or children:
        while waiting and len(children) < options.jobs:
            children[waiting[0]] = Child(builders[waiting[0]], options.ways, options.limit)
            del waiting[0]
        for name, child in list(children.items()):
            if (row := child.row()) is not None:
                del children[name]
                rows[name] = {"model": name, **row}
                print(json.dumps(rows[name]), file=sys.stderr, flush=True)
                if options.work is not None:
                    with options.work.open("a") as lines:
                        lines.write(json.dumps(rows[name]) + "\n")
        time.sleep(0.05)
    found = [rows[name] for name in names]
    show({"environment": environment(), "rows": found, "summary": summary(found, options.ways)}, options.json)


def architectures(families: Sequence[str]) -> dict[str, Any]:
    """Name -> builder."""
    found: dict[str, Any] = {}
    for family in families:
        for name, builder in importlib.import_module(f"architectures.{family}").MODELS.items():
            if name in found:
                raise ValueError(f"two architectures are called {name}")
            found[name] = builder
    return found


def summary(rows: Sequence[dict[str, Any]], ways: Sequence[str]) -> dict[str, Any]:
    """How many rows came out how, each way."""
    found: dict[str, Any] = {"models": len(rows)}
    for way in ways:
        counts = Counter(str(row.get(way, "failed")) for row in rows)
        found[way] = dict(counts)
        found[f"{way}_share_right"] = round(counts["right"] / max(1, len(rows)), 4)
    found["models_with_wrong_parts"] = sum(bool(row.get("parts_wrong")) for row in rows)
    return found


def _kept(work: Path | None) -> dict[str, dict[str, Any]]:
    lines = work.read_text().splitlines() if work is not None and work.exists() else []
    return {row["model"]: row for row in map(json.loads, lines)}


class Child:
    """A fork of this process that makes the row of a model."""

    def __init__(self, builder: Any, ways: Sequence[str], limit_secs: float) -> None:
        self.ways, self.limit_secs, self.started = ways, limit_secs, time.monotonic()
        self.scratch = tempfile.TemporaryDirectory(prefix="coverage-")
        folder = Path(self.scratch.name)
        self.told = folder / "row.json"
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                _in_folder(folder)
                _row(builder, ways, self.told)
            except BaseException:  # noqa: BLE001 - the parent is told by what the file holds
                traceback.print_exc()
            finally:
                os._exit(0)

    def row(self) -> dict[str, Any] | None:
        """What it made; None while it is at work."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        is_late = not pid and time.monotonic() - self.started > self.limit_secs
        if not pid and not is_late:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if is_late:
            os.waitpid(self.pid, 0)
        row: dict[str, Any] = json.loads(self.told.read_text()) if self.told.exists() else {}
        for way in self.ways:
            if way not in row:
                row[way] = "late" if is_late else "failed"
                if not is_late and os.WIFSIGNALED(status):
                    row[f"{way}_reason"] = f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
                break
        row["secs"] = round(time.monotonic() - self.started, 1)
        self.scratch.cleanup()
        return row


def _in_folder(folder: Path) -> None:
    """No cache, database or service but those of this child."""
    os.environ.update(PITCHPIPE_CACHE_DIR=str(folder / "cache"), XDG_DATA_HOME=str(folder / "data"), PITCHPIPE_URL="")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not os.environ.get("COVERAGE_SHOWS"):
        os.dup2(1, 2)


def _prepare_process() -> None:
    """Everything is imported once, and steps run in the process that asks for them: it is a child of its own already."""
    from pitchpipe import torch_backend
    from pitchpipe.torch_backend import paired_benchmark
    from tuner.deploy import build as deploy
    from tuner.graph.prepare import prepare
    from tuner.ingest import DEFAULT_LIMITS, parse_container
    from tuner.ingest.relax_reader import read_relax
    from tuner.ingest.torch_export import from_torch
    from tuner.tvm_compat import load_ir

    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        import transformers

        transformers.logging.set_verbosity_error()
    torch.set_num_threads(kernel_threads())
    torch._dynamo.config.use_numpy_random_stream = True  # else torch.compile draws other numbers than eager mode

    def here(name: str, data: bytes = b"", arrays: Any = None, **given: Any) -> Any:
        given.pop("timeout_secs", None)
        return step(name)(data, arrays or {}, **given)

    proved = SimpleNamespace(ok=True, wrong=False, detail="")
    for module, stand_ins in (
        (identity, {"run_step": here}),
        (building, {"run_step": here, "prove": lambda *_, **__: proved}),
        (sdk, {"run_step": here, "lacks_linker": lambda _target: True}),
        (deploy, {"ingest": lambda data, _format: read_relax(data, DEFAULT_LIMITS)}),
        (paired_benchmark, {"MARGIN": float("inf"), "BUDGET_SECS": 0.0, "LEAST_ROUNDS": 1}),
    ):
        mock.patch.multiple(module, **stand_ins).start()
    target = detect_target("llvm")
    kind_of(target).load_intrinsics()
    # What torch and TVM import and cache when they are first used, a fork would do again. Nothing here starts a thread.
    tiny = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    example = torch.ones(2, 4)
    data, _ = from_torch(tiny, (example,))
    prepare(load_ir(parse_container(data).ir), target)
    torch.compile(tiny, backend="aot_eager")(example).sum().backward()
    torch_backend.recompile()


def _row(builder: Any, ways: Sequence[str], told: Path) -> None:
    """Writes what is known after every way, so that a crash of one keeps the others."""
    row: dict[str, Any] = {}

    def tell(**found: Any) -> None:
        row.update(found)
        part = told.with_suffix(".part")
        part.write_text(json.dumps(row))
        part.rename(told)

    torch.manual_seed(0)
    module, examples = builder()
    tell(parameters=sum(each.numel() for each in module.parameters()))
    sets = [
        [torch.as_tensor(each) for each in one] for one in comparison.input_sets([each.numpy() for each in examples])
    ]
    with torch.no_grad():
        expected = [arrays(module(*one)) for one in sets]
    if not expected[0] or not all(each.size for each in expected[0]):
        raise ValueError("the model gives nothing to compare")
    judges = {"load": partial(_load, tell=tell), "compile": _compile, "train": partial(train, tell=tell)}
    for way, judge in judges.items():
        if way in ways:
            with _wrong_parts() as wrong:
                tell(**_judged(way, lambda judge=judge: judge(module, examples, sets, expected)))
            if wrong:
                tell(parts_wrong=[*row.get("parts_wrong", []), *wrong])
    if "wrong" in (row.get(way) for way in ways):
        tell(own_error=_own_error(module, sets, expected))


def _judged(way: str, judge: Callable[[], float | str]) -> dict[str, Any]:
    started = time.monotonic()
    try:
        found = judge()
    except REFUSED as error:
        told: dict[str, Any] = {way: "refused", f"{way}_reason": _short(error)}
    except Exception as error:  # noqa: BLE001 - any kind is a row's result
        told = {way: "failed", f"{way}_reason": _short(error)}
    else:
        told = (
            {way: "right", f"{way}_error": found}
            if isinstance(found, float)
            else {way: "wrong", f"{way}_reason": found}
        )
    return told | {f"{way}_secs": round(time.monotonic() - started, 1)}


def _load(module: Any, examples: Any, sets: Any, expected: Any, tell: Callable[..., None]) -> float | str:
    compiled = sdk.load(module, example_inputs=examples, target=detect_target("llvm"))
    tell(workloads=json_digest(sorted([*compiled.manifest.tuned, *compiled.manifest.untuned])))
    return _worst(
        [(arrays(compiled(*[each.numpy() for each in one])), good) for one, good in zip(sets, expected, strict=True)]
    )


def _compile(module: Any, _examples: Any, sets: Any, expected: Any) -> float | str:
    from pitchpipe import torch_backend

    torch_backend.recompile()
    compiled = torch.compile(module, backend="pitchpipe", options=COMPILED)
    with torch.no_grad():
        return _worst([(arrays(compiled(*one)), good) for one, good in zip(sets, expected, strict=True)])


def _worst(pairs: Sequence[tuple[Any, Any]]) -> float | str:
    """The largest error, or how the worst pair differs."""
    for found, good in pairs:
        if (told := comparison.difference(found, good)) is not None:
            return told
    return max(comparison.largest_error(found, good) for found, good in pairs)


def _own_error(module: Any, sets: Any, expected: Any) -> float | None:
    try:
        wide = module.double()
        with torch.no_grad():
            found = [wide(*[each.double() if each.is_floating_point() else each for each in one]) for one in sets]
        return max(
            comparison.largest_error(good, [each.astype("float32") for each in arrays(one)])
            for one, good in zip(found, expected, strict=True)
        )
    except Exception:  # noqa: BLE001 - not every model runs in float64
        return None


@contextlib.contextmanager
def _wrong_parts() -> Iterator[list[str]]:
    """What paired benchmarks find to be wrong meanwhile."""
    from pitchpipe.torch_backend import paired_benchmark

    found: list[str] = []
    compared = paired_benchmark.compared

    def watched(*arguments: Any, **given: Any) -> str | None:
        wrong = compared(*arguments, **given)
        if wrong is not None:
            found.append(wrong[:200])
        return wrong

    with mock.patch.object(paired_benchmark, "compared", watched):
        yield found


def _short(error: BaseException) -> str:
    kind = "" if isinstance(error, PitchpipeError) else f"{type(error).__name__}: "
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{kind}{text}"[:300]


if __name__ == "__main__":
    main()
