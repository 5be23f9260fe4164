"""Models of JAX, flax and TFLite, each compared with the framework it came from, on three sets of inputs or more.

    python benchmarks/other_frontends.py --json > benchmarks/results/other_frontends.json

Every model goes the user's way: read in the confined child, prepared, compiled with the compiler's default schedules. JAX
models are compared with jax.jit by pitchpipe/model/comparison.py. TFLite files are compared with TFLite's own interpreter:
floats likewise, int8 outputs within one quantisation step. A flax model is left out where flax is not installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from environment import environment, parser, show

from pitchpipe.errors import InvalidModel, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.comparison import difference, input_sets, largest_error
from pitchpipe.model.local import detect_target, local_model
from pitchpipe.wire.job import ModelFormat
from tuner.deploy.build import compile_scheduled, schedule_model
from tuner.ingest import convert, parse_container
from tuner.tvm_compat import relax, tvm

SETS = 3
"""Sets of inputs that a TFLite file is run with."""
Run = Callable[[list[np.ndarray]], list[np.ndarray]]


def built(data: bytes, weights: dict[str, np.ndarray], target: Any) -> Run:
    """The model, compiled, its weights bound."""
    ingested = parse_container(data)
    machine = relax.VirtualMachine(compile_scheduled(schedule_model(ingested, target, {})), tvm.cpu())
    bound = machine["main_transform_params"]([tvm.runtime.tensor(weights[spec.name]) for spec in ingested.params])

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        found = machine["main"](*map(tvm.runtime.tensor, inputs), *bound)
        return [found.numpy()] if hasattr(found, "numpy") else [part.numpy() for part in found]

    return run


def jax_row(make: Callable[[], Any], target: Any) -> dict[str, Any]:
    import jax

    function, examples = make()
    jitted = jax.jit(function)
    model = local_model(jitted, examples)
    run = built(model.data, model.weights, target)
    worst, told = 0.0, None
    for inputs in input_sets([np.asarray(one) for one in examples]):
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jitted(*inputs))]
        found = run(inputs)
        told = told or difference(found, expected)
        worst = max(worst, largest_error(found, expected))
    return {"largest_error": worst, "differs": told}


def tflite_row(make: Callable[[], bytes], target: Any, step: float | None) -> dict[str, Any]:
    """`step`: the quantisation step of outputs that are floats on its grid."""
    from frontends.tflite_files import example_inputs, interpreted

    file = make()
    run = built(*convert(file, ModelFormat.TFLITE), target)
    worst, steps, told = 0.0, 0.0, None
    for seed in range(SETS):
        inputs = example_inputs(file, seed)
        expected, found = interpreted(file, inputs), run(inputs)
        quantised = [one.dtype in (np.int8, np.uint8) or step is not None for one in expected]
        for ours, theirs, on_grid in zip(found, expected, quantised, strict=True):
            if on_grid and ours.shape == theirs.shape and ours.dtype == theirs.dtype:
                away = float(np.abs(ours.astype(float) - theirs.astype(float)).max() / (step or 1.0))
                steps = max(steps, away)
                told = told or (f"an output is {away:.2f} steps off" if away > 1.01 else None)
                continue
            told = told or difference([ours], [theirs])
            worst = max(worst, largest_error([ours], [theirs]))
    return {"largest_error": worst, "steps": steps, "differs": told}


def judged(make_row: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        row = make_row()
    except (UnsupportedOperator, UnsupportedShape, InvalidModel) as error:
        return {"verdict": "refused", "why": error.detail[:300]}
    return {"verdict": "right" if row["differs"] is None else "wrong", **row}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", help="models whose names begin so; all by default")
    options = arguments.parse_args()
    from frontends import jax_models, tflite_files

    models: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {}
    target = detect_target("auto")
    sources = {"jax": jax_models.MODELS}
    absent = [] if find_spec("flax") else ["flax"]
    if not absent:
        from frontends import flax_models

        sources["flax"] = flax_models.MODELS
    for source, makers in sources.items():
        models |= {(source, name): (lambda make=make: jax_row(make, target)) for name, make in makers.items()}
    for name, make in tflite_files.FILES.items():
        step = tflite_files.STEPS.get(name)
        models[("tflite", name)] = lambda make=make, step=step: tflite_row(make, target, step)
    chosen = [key for key in models if not options.names or key[1].startswith(tuple(options.names))]
    if options.quick:
        chosen = [key for key in chosen if key[1] in ("mlp mixer", "shapes", "int8 element by element")]
    rows = [{"source": source, "model": name, **judged(models[source, name])} for source, name in chosen]
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["source"], Counter())[row["verdict"]] += 1
    summary = {
        source: {verdict: count[verdict] for verdict in ("right", "wrong", "refused")}
        for source, count in counts.items()
    }
    show({"environment": environment(sets=SETS, absent=absent), "rows": rows, "summary": summary}, options.json)


if __name__ == "__main__":
    main()
