"""PyTorch operators that are neither products nor convolutions, as `pitchpipe.load` runs them untuned, beside PyTorch's own.

    python benchmarks/operator_latency.py --json > benchmarks/results/operator_latency.json
    python benchmarks/operator_latency.py --only sort,grid_sample

Each is a module of that operator alone. Ours is a call of the loaded model, whose default schedules were checked and never
timed; beside it eager PyTorch, in one process on the same threads, in turn (rounds.py). A call of ours copies small results
out of the program's memory, and that is part of it.
`error` is the largest difference from eager's results over their largest element.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from environment import environment, kernel_threads, parser, show
from rounds import geometric_mean, orders, ratio_of, time_of
from torch.nn import functional

import pitchpipe

ROUNDS, QUICK_ROUNDS = 9, 2
TURN_SECS = 0.03
QUICK = ("sort 256x2048", "cumsum 256x2048")
Case = tuple[Callable[..., Any], Sequence[Any]]


def cases() -> dict[str, Case]:
    """Operator and size -> a function and its inputs."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=draw)

    def whole(high: int, *shape: int) -> Any:
        return torch.randint(high, shape, generator=draw)

    x, positive, image = normal(256, 2048), normal(256, 2048).abs() + 0.1, normal(1, 32, 96, 96)
    grid = torch.rand(1, 96, 96, 2, generator=draw) * 2 - 1
    matrices = normal(16, 32, 32) + 8 * torch.eye(32)
    sampled = functional.grid_sample
    return {
        "sort 256x2048": (lambda x: x.sort(-1)[0], [x]),
        "argsort 256x2048": (lambda x: x.argsort(dim=-1, stable=True), [x]),
        "topk 10 of 256x2048": (lambda x: x.topk(10)[0], [x]),
        "topk 10 of 524288": (lambda x: x.topk(10)[0], [x.flatten()]),
        "topk 300 of 8400": (lambda x: x.topk(300)[1], [normal(1, 8400)]),
        "kthvalue 256x2048": (lambda x: x.kthvalue(100)[0], [x]),
        "median 256x2048": (lambda x: x.median(-1)[0], [x]),
        "cumsum 256x2048": (lambda x: x.cumsum(-1), [x]),
        "cummax 256x2048": (lambda x: x.cummax(-1)[0], [x]),
        "logcumsumexp 256x2048": (lambda x: x.logcumsumexp(-1), [x]),
        "searchsorted 524288 in 1000": (torch.searchsorted, [normal(1000).sort()[0], x]),
        "bucketize 524288 in 16": (torch.bucketize, [x, torch.linspace(-2, 2, 16)]),
        "histc 64 of 524288": (lambda x: torch.histc(x, 64, -3, 3), [x]),
        "grid_sample 32x96x96": (lambda x, grid: sampled(x, grid, align_corners=False), [image, grid]),
        "grid_sample 1x96x96": (lambda x, grid: sampled(x, grid, align_corners=False), [image[:, :1].clone(), grid]),
        "grid_sample bicubic": (lambda x, grid: sampled(x, grid, mode="bicubic", align_corners=False), [image, grid]),
        "bicubic 2x": (lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"), [image]),
        "bilinear 2x": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), [image]),
        "unfold 3x3": (lambda x: functional.unfold(x, 3, padding=1), [image]),
        "fold 3x3": (lambda x: functional.fold(x, (96, 96), 3, padding=1), [normal(1, 288, 9216)]),
        "gather 256x512 of 2048": (lambda x, i: x.gather(1, i), [x, whole(2048, 256, 512)]),
        "index_select 1024 rows": (lambda x, i: x.index_select(0, i), [x, whole(256, 1024)]),
        "index_add 3000 to 500x64": (
            lambda x, i, y: x.index_add(0, i, y),
            [normal(500, 64), whole(500, 3000), normal(3000, 64)],
        ),
        "where 256x2048": (lambda x, y: torch.where(x > 0, x, y), [x, positive]),
        "masked_fill 256x2048": (lambda x, m: x.masked_fill(m, -1e9), [x, x > 0]),
        "nan_to_num 256x2048": (torch.nan_to_num, [x]),
        "rot90 256x2048": (lambda x: x.rot90(), [x]),
        "flip 256x2048": (lambda x: x.flip(1), [x]),
        "transpose 256x2048": (lambda x: x.t().contiguous(), [x]),
        "softmax over rows": (lambda x: x.softmax(0), [x]),
        "logsumexp 256x2048": (lambda x: x.logsumexp(-1), [x]),
        "var 256x2048": (lambda x: x.var(-1), [x]),
        "argmax 256x2048": (lambda x: x.argmax(-1), [x]),
        "instance_norm 32x96x96": (functional.instance_norm, [image]),
        "cdist 256x512x64": (torch.cdist, [normal(256, 64), normal(512, 64)]),
        "rfft 256x2048": (lambda x: torch.fft.rfft(x).abs(), [x]),
        "stft 16000": (
            lambda x: torch.stft(x, 512, 128, window=torch.hann_window(512), return_complex=True).abs(),
            [normal(1, 16000)],
        ),
        "inverse 16x32x32": (torch.linalg.inv, [matrices]),
        "solve 16x32x32": (torch.linalg.solve, [matrices, normal(16, 32, 4)]),
        "exp2 256x2048": (torch.exp2, [x]),
        "pow 2.5 of 256x2048": (lambda x: x**2.5, [positive]),
        "atan2 256x2048": (torch.atan2, [x, positive]),
        "logaddexp 256x2048": (torch.logaddexp, [x, positive]),
        "erfc 256x2048": (torch.erfc, [x]),
        "sin 256x2048": (torch.sin, [x]),
        "log1p 256x2048": (torch.log1p, [positive]),
    }


class Operator(torch.nn.Module):  # type: ignore[misc]  # torch is not looked into
    """A module of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def row_of(name: str, case: Case, rounds: int) -> dict[str, Any]:
    function, inputs = case
    module = Operator(function).eval()
    sides: dict[str, Callable[..., Any]] = {
        "ours": pitchpipe.load(module, None, tuple(inputs)),
        "eager": module,
    }
    results = {side: torch.as_tensor(run(*inputs)).double() for side, run in sides.items()}
    blocks: dict[str, list[list[float]]] = {side: [] for side in sides}
    for order in orders(len(sides), rounds):
        for side in (list(sides)[at] for at in order):
            blocks[side].append(block_of(sides[side], inputs))
    expected = results["eager"]
    found = ratio_of(blocks["eager"], blocks["ours"])
    return {
        "operator": name,
        **{f"{side}_secs": time_of(blocks[side]).value for side in sides},
        "eager_over_ours": found.value,
        "eager_over_ours_interval": [found.low, found.high],
        "error": float((results["ours"] - expected).abs().max() / expected.abs().max().clamp(min=1e-30)),
    }


def block_of(run: Callable[..., Any], inputs: Sequence[Any]) -> list[float]:
    """Seconds of each run of a turn."""
    run(*inputs)
    found, begin = list[float](), time.perf_counter()
    while time.perf_counter() - begin < TURN_SECS or len(found) < 3:
        before = time.perf_counter()
        run(*inputs)
        found.append(time.perf_counter() - before)
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", help="beginnings of names, separated by commas")
    options = arguments.parse_args()
    wanted = tuple(options.only.split(",")) if options.only else QUICK if options.quick else ("",)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    warnings.simplefilter("ignore")
    torch.set_num_threads(kernel_threads())
    found = environment(rounds=rounds, turn_secs=TURN_SECS)
    with torch.no_grad():
        rows = [row_of(name, case, rounds) for name, case in cases().items() if name.startswith(wanted)]
    summary = {"eager_over_ours": geometric_mean([row["eager_over_ours"] for row in rows])}
    show({"environment": found, "rows": rows, "summary": summary}, as_json=options.json)


if __name__ == "__main__":
    main()
