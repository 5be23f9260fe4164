"""Models in 8 bits, as ONNX Runtime's own tools quantise them: ours without a trial, ONNX Runtime and OpenVINO, in turn.

    python benchmarks/quantised.py --json > benchmarks/results/quantised.json
    python benchmarks/quantised.py --only distilbert_s64

Models are those of models.py, or of the file that `--models` names, exported to ONNX. `dynamic` has weights in 8 bits and
activations quantised while it runs (`quantize_dynamic`); `static` has both, with QuantizeLinear and DequantizeLinear
(`quantize_static`, calibrated on the example inputs). Ours is the default build: schedules that were checked and never
timed. Each side is a process of its own (peers/quantised.py); rounds.py says how the figures are made.

Bytes are rounded between layers, so outputs of two programs differ by more than float32's rounding: `deviation` is ours
from ONNX Runtime's, `peers_deviate` OpenVINO's, both as comparison.py defines an error.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from contestants import Contestant, ContestantFailed, take_turns
from environment import environment, kernel_threads, models_parser, names_chosen, show
from model_file import models_of
from rounds import geometric_mean, ratio_of, time_of

from pitchpipe.model.comparison import largest_error

HERE = Path(__file__).parent
WAYS = ("dynamic", "static")
NAMES = ("bert_base_s128", "distilbert_s64", "vit_b16", "resnet18")
OURS, PEERS = "default", ("onnxruntime", "openvino")
ROUNDS, QUICK_ROUNDS = 10, 4


def write_files(models: Path, name: str, folder: Path, ways: Sequence[str]) -> None:
    """Exports a model and quantises it, a folder for each way."""
    import torch
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    torch.manual_seed(0)
    module, inputs = models_of(models)[name]()
    whole = folder / "float32.onnx"
    names = [f"input{at}" for at in range(len(inputs))]
    torch.onnx.export(module, inputs, str(whole), dynamo=False, opset_version=17, input_names=names)
    arrays = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}

    class Examples(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [arrays]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    for way in ways:
        (folder / way).mkdir()
        np.savez(folder / way / "inputs.npz", **arrays)
        made = folder / way / "model.onnx"
        if way == "dynamic":
            quantize_dynamic(whole, made, weight_type=QuantType.QInt8)
        else:
            types = {"weight_type": QuantType.QInt8, "activation_type": QuantType.QUInt8}
            quantize_static(str(whole), str(made), Examples(), quant_format=QuantFormat.QDQ, **types)


def measured(name: str, way: str, folder: Path, rounds: int) -> dict[str, Any]:
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        contestants = []
        for side in (*PEERS, OURS):
            command = [str(HERE / "peers" / "quantised.py"), side, str(folder)]
            threads = {"TVM_NUM_THREADS": str(kernel_threads())}
            contestant = stack.enter_context(Contestant(side, command, threads, folder / f"{side}.log"))
            try:
                told[side] = contestant.ready()
            except ContestantFailed as error:
                if side != "openvino":
                    raise
                print(error, file=sys.stderr)
                continue
            contestants.append(contestant)
        blocks = take_turns(contestants, rounds)
    outputs = {side: np.load(one["output"]) for side, one in told.items()}
    errors = {side: largest_error([outputs[side]], [outputs["onnxruntime"]]) for side in blocks}
    secs = {side: time_of(found) for side, found in blocks.items()}
    best = min((side for side in blocks if side != OURS), key=lambda side: secs[side].value)
    ratio = ratio_of(blocks[best], blocks[OURS])
    return {
        "model": f"{name} {way}",
        "ours_secs": secs[OURS].value,
        "ours_secs_interval": [secs[OURS].low, secs[OURS].high],
        "best_peer": best,
        "best_peer_over_ours": ratio.value,
        "best_peer_over_ours_interval": [ratio.low, ratio.high],
        "peers": {side: secs[side].value for side in blocks if side != OURS},
        "load_secs": told[OURS]["setup_secs"],
        "deviation": errors[OURS],
        "peers_deviate": errors.get("openvino"),
    }


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--only", help=f"names of models, with commas between; default: {','.join(NAMES)}")
    options = arguments.parse_args()
    known = models_of(options.models)
    names = names_chosen(
        arguments, options, [*filter(known.__contains__, NAMES), *sorted({*known} - {*NAMES})], len(NAMES)
    )
    if options.quick and not options.only:
        names = ["distilbert_s64"]
    result: dict[str, Any] = {"environment": environment(), "rows": []}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            write_files(options.models, name, Path(folder), WAYS)
            for way in WAYS:
                rounds = QUICK_ROUNDS if options.quick else ROUNDS
                result["rows"].append(measured(name, way, Path(folder) / way, rounds))
                print(f"{name} {way}: load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    ratios = [row["best_peer_over_ours"] for row in result["rows"]]
    result["summary"] = {
        "geomean_best_peer_over_ours": geometric_mean(ratios),
        "worst_best_peer_over_ours": min(ratios),
        "lost_to_a_peer": [row["model"] for row in result["rows"] if row["best_peer_over_ours"] < 1.0],
    }
    show(result, options.json)


if __name__ == "__main__":
    main()
