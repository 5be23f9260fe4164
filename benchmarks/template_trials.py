"""What is known of a template's points before a task's first trial: measures it, learns from it, and says how good it is.

    python benchmarks/template_trials.py --prepare set.json       # tasks of networks, and points to measure; no GPU
    python benchmarks/template_trials.py --measure set.json --seconds 500 --to rows.jsonl       # on an H100 or H200
    python benchmarks/template_trials.py --add rows.jsonl --of set.json                # to the data, a Parquet file
    python benchmarks/template_trials.py --learn                  # writes tuner/templates/contraction_weights.json
    python benchmarks/template_trials.py --json                   # how good it is; no GPU

For each network in turn the correction is learned from all other networks, workloads of the same extents as one of its own
left out, and the measured points of its workloads are ordered by it, and by the analytic estimate alone. `regret_n` is the
best time of the first n over the best of all of a workload's points, as a geometric mean, `worst_n` that of the worst
workload, `pairwise` the share of pairs in the right order.

Points were drawn from the best by the order that was shipped then, and from the whole space; those of the first commit of
the data were the best by the estimate and its better third. So the best of them is not the best of the space.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from environment import environment, parser, show  # noqa: E402
from rounds import geometric_mean  # noqa: E402

from tuner.search.marks import pairwise  # noqa: E402
from tuner.templates.estimate import estimate_secs  # noqa: E402
from tuner.templates.experience import FILE, described, features, learn  # noqa: E402
from tuner.templates.points import Points  # noqa: E402
from tuner.templates.text import parse  # noqa: E402

DATA = ROOT / "benchmarks" / "results" / "template_trials.parquet"
WEIGHTS = ROOT / "tuner" / "templates" / FILE
RIDGE = 10.0
AFTER = (1, 4, 8, 16, 32)
"""Trials after which the regret is told."""
BEST, ANYWHERE = 32, 24
"""Points of a workload: the best by the order that is shipped, and any."""
TASKS = 3
"""Of a network: the costliest."""
QUICK_NETWORKS = 3
Floats = NDArray[np.float64]


def networks() -> dict[str, Any]:
    """Name -> (builder of module and inputs, batch)."""
    import torch
    from replay_networks import NETWORKS
    from torch import nn

    def perceptron(rows: int, width: int, inner: int) -> Any:
        def build() -> Any:
            layers = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
            return layers.eval(), (torch.randn(rows, width),)

        return build

    def scores(batch: int, rows: int, width: int) -> Any:
        class Scores(nn.Module):
            def forward(self, x: Any, y: Any) -> Any:
                return torch.relu(x @ y.transpose(-1, -2)) @ y

        return lambda: (Scores().eval(), (torch.randn(batch, rows, width), torch.randn(batch, rows, width)))

    sizes = [
        *((1, 1024, 4096), (8, 1024, 4096), (16, 4096, 4096), (64, 1024, 4096), (256, 256, 1024), (512, 512, 2048)),
        *((512, 4096, 11008), (1024, 2048, 8192), (2048, 1024, 4096), (4096, 1024, 4096), (8192, 320, 1280)),
    ]
    return {
        **{f"{name}, {batch}": (build, batch) for name, build in NETWORKS.items() for batch in (1, 8)},
        **{f"mlp {m}x{k}x{n}": (perceptron(m, k, n), 1) for m, k, n in sizes},
        **{f"scores {b}x{m}x{k}": (scores(b, m, k), 1) for b, m, k in ((12, 128, 64), (96, 197, 64), (8, 512, 128))},
    }


def prepare(path: Path, quick: bool) -> None:
    """Writes the tasks with the points to measure."""
    import torch
    from kernels import TARGET
    from replay_draws import tasks_of

    from pitchpipe.errors import InvalidTrace, PitchpipeError
    from pitchpipe.target_kind import kind_of
    from tuner.templates.contraction import find_contraction
    from tuner.templates.points import points_of
    from tuner.templates.text import checked
    from tuner.tvm_compat import load_ir

    rng, found = np.random.default_rng(1), dict[str, Any]()
    for name, (build, batch) in list(networks().items())[: QUICK_NETWORKS if quick else None]:
        torch.manual_seed(0)
        module, inputs = build()
        inputs = tuple(x.half() if x.is_floating_point() else x for x in inputs)
        inputs = tuple(torch.cat([x] * batch) if x.dim() else x for x in inputs)
        try:
            tasks = tasks_of(module.half(), inputs, TARGET)
        except PitchpipeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        taken = 0
        for task in sorted(tasks, key=lambda task: -task.weight * task.flops):
            if taken == TASKS or task.workload.digest in found:
                continue
            try:
                contraction = find_contraction(load_ir(task.workload.ir))
            except InvalidTrace:
                continue
            ranked = kind_of(TARGET).templates(task.workload, TARGET)
            spaces = [(points, n) for points in points_of(contraction, TARGET) for n in range(len(points))]
            if not ranked:
                continue
            drawn = [spaces[int(at)] for at in rng.permutation(len(spaces))[:ANYWHERE]]
            texts = [one.text for one in ranked[:BEST]]
            texts += [checked(points.template, points.at(n)).text for points, n in drawn]
            found[task.workload.digest] = {
                "network": name.split(",")[0],
                "model": name,
                "name": task.name,
                "dtype": contraction.dtype,
                **{axes: contraction.extent(axes) for axes in "sij"},
                "k": [axis.extent for axis in contraction.k],
                "workload": task.workload.model_dump(mode="json"),
                "points": list(dict.fromkeys(texts)),
            }
            taken += 1
        print(f"{name}: {taken} tasks", file=sys.stderr, flush=True)
    path.write_text(json.dumps(found))


def measure(path: Path, to: Path, seconds: float) -> None:
    """Measures the points of as many workloads as the seconds allow, in an order of its own, after those in the file."""
    from pitchpipe.wire.measure import Candidate, MeasureConfig, Timed
    from pitchpipe.wire.task import Workload
    from workers.device import detect_target
    from workers.sandbox.sandbox import Sandbox

    entries, ends = json.loads(path.read_text()), time.monotonic() + seconds
    here = environment(gpu=True)
    done = {json.loads(line)["workload"] for line in to.read_text().splitlines()} if to.exists() else set()
    order = [digest for digest in sorted(entries) if digest not in done]
    np.random.default_rng(2).shuffle(order)
    with Sandbox(detect_target("cuda")) as sandbox, to.open("a") as file:
        for digest in order:
            if time.monotonic() > ends:
                break
            workload = Workload.model_validate(entries[digest]["workload"])
            texts = {Candidate.of(digest, text).digest: text for text in entries[digest]["points"]}
            candidates = [Candidate.of(digest, text) for text in texts.values()]
            for result in sandbox.measure(workload, candidates, MeasureConfig()):
                row: dict[str, Any] = {"workload": digest, "point": texts[result.candidate]}
                row |= {"device": here["gpu"]["model"], "commit": here["commit"]}
                if isinstance(result, Timed):
                    row["seconds"] = float(np.median(result.run_secs))
                else:
                    row |= {"failure": result.kind.value, "detail": result.detail[:200]}
                file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{entries[digest]['model']}: {entries[digest]['name']}", file=sys.stderr, flush=True)


def add(rows: Path, of: Path) -> None:
    """Adds measured rows to the data."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    entries = json.loads(of.read_text())
    told = ("network", "model", "name", "dtype", "s", "i", "j", "k")
    found = [
        {name: entries[row["workload"]][name] for name in told}
        | {name: row.get(name) for name in ("workload", "point", "seconds", "failure", "device", "commit")}
        for row in map(json.loads, rows.read_text().splitlines())
    ]
    table = pa.Table.from_pylist(found)
    if DATA.exists():
        table = pa.concat_tables([pq.read_table(DATA), table])
    pq.write_table(table, DATA, compression="zstd", compression_level=19)
    print(f"{table.num_rows} rows", file=sys.stderr)


def workloads() -> Iterator[dict[str, Any]]:
    """Of each measured workload: its network and extents, and its points' features, estimates and times; no failed ones."""
    import pyarrow.parquet as pq

    rows: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(DATA).to_pylist():
        if row["seconds"] is not None:
            rows.setdefault(row["workload"], []).append(row)
    for own in rows.values():
        first = own[0]
        # Of a contraction the estimate and the features need its extents and its type alone.
        axes = {"s": [first["s"]], "i": [first["i"]], "j": [first["j"]], "k": first["k"]}
        found: Any = SimpleNamespace(
            **{name: tuple(values) for name, values in axes.items()},
            extent=lambda names, axes=axes: int(np.prod([one for name in names for one in axes[name]])),
            dtype=first["dtype"],
            tf32=False,
        )
        by_template: dict[str, list[dict[str, Any]]] = {}
        for row in own:
            by_template.setdefault(parse(row["point"]).template, []).append(row)
        secs, estimates, told = list[Floats](), list[Floats](), list[Floats]()
        for template, members in by_template.items():
            chosen = [parse(row["point"]).arguments for row in members]
            points = Points(
                template=template, arguments={name: np.array([one[name] for one in chosen]) for name in chosen[0]}
            )
            secs.append(np.array([row["seconds"] for row in members]))
            estimates.append(estimate_secs(found, points))
            told.append(features(found, points, estimates[-1]))
        yield {
            "network": first["network"],
            "device": first["device"],
            "extents": (first["s"], first["i"], first["j"], *first["k"]),
            "names": list(described(found, points, estimates[-1])),
            "secs": np.concatenate(secs),
            "estimates": np.concatenate(estimates),
            "features": np.vstack(told),
        }


def learned(chosen: Sequence[dict[str, Any]]) -> Any:
    """The correction that these workloads teach."""
    return learn([one["features"] for one in chosen], [np.log(one["secs"] / one["estimates"]) for one in chosen], RIDGE)


def marks(orders: Sequence[tuple[Floats, Floats]]) -> dict[str, Any]:
    """Of (times, scores) of each workload."""
    regrets: dict[int, list[float]] = {n: [] for n in AFTER}
    right = []
    for secs, scores in orders:
        order = np.argsort(scores, kind="stable")
        for n in AFTER:
            regrets[n].append(float(secs[order[:n]].min() / secs.min()))
        right.append(pairwise(1 / secs, -scores))
    return {
        **{f"regret_{n}": geometric_mean(found) for n, found in regrets.items()},
        **{f"worst_{n}": max(found) for n, found in regrets.items()},
        "pairwise": float(np.mean(right)),
    }


def main() -> None:
    """See the module's docstring."""
    arguments = parser(__doc__)
    arguments.add_argument("--prepare", type=Path)
    arguments.add_argument("--measure", type=Path)
    arguments.add_argument("--to", type=Path, default=Path("rows.jsonl"))
    arguments.add_argument("--seconds", type=float, default=500.0)
    arguments.add_argument("--add", type=Path)
    arguments.add_argument("--of", type=Path)
    arguments.add_argument("--learn", action="store_true")
    options = arguments.parse_args()
    if options.prepare:
        prepare(options.prepare, options.quick)
        return
    if options.measure:
        measure(options.measure, options.to, options.seconds)
        return
    if options.add:
        add(options.add, options.of)
        return
    every = list(workloads())
    if options.learn:
        model = {name: [float(f"{one:.7g}") for one in values] for name, values in vars(learned(every)).items()}
        told = {"workloads": len(every), "points": _points(every), "features": every[0]["names"], "model": model}
        WEIGHTS.write_text(json.dumps(told) + "\n")
        return
    alone, corrected = list[tuple[Floats, Floats]](), list[tuple[Floats, Floats]]()
    names = sorted({one["network"] for one in every})
    for name in names[: QUICK_NETWORKS if options.quick else None]:
        own = [one for one in every if one["network"] == name]
        alike = {one["extents"] for one in own}
        model = learned([one for one in every if one["network"] != name and one["extents"] not in alike])
        for one in own:
            alone.append((one["secs"], np.log(one["estimates"])))
            corrected.append((one["secs"], np.log(one["estimates"]) + model.corrections(one["features"])))
    rows = [{"order": "estimate", **marks(alone)}, {"order": "estimate and experience", **marks(corrected)}]
    devices = sorted({one["device"] for one in every})
    found = environment(networks=len(names), workloads=len(every), points=_points(every), devices=devices)
    show({"environment": found, "rows": rows, "summary": {"regret_8": rows[1]["regret_8"]}}, options.json)


def _points(every: Sequence[dict[str, Any]]) -> int:
    return sum(len(one["secs"]) for one in every)


if __name__ == "__main__":
    main()
