"""How much of torch's operator database is right: exported and built by `load`'s steps, or compiled by torch.compile.

    python benchmarks/torch_operators.py --json --work DIR [--compile] [--types float32,int64] [--only add,abs]

Up to three samples of each operator in each type. A row is an operator and a type: what became of each sample (right, wrong,
refused, raised, outside) and the first reason. `outside` are samples that no static inference program holds: random draws,
shapes that depend on data, sparse and complex tensors, results that are no tensors, programs that write into their inputs,
memory that nobody has written, tensors without elements among inputs and results, and what eager mode or torch.export
refuses; shares are given with and without them. An operator is right if all its samples are.

A child judges one operator after another and is replaced when one ends or outlasts it, which is then `raised`. Rows are kept
in --work as they come: a run that was stopped goes on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from environment import environment, parser, show

TYPES = ("float32", "int64", "float16", "bfloat16")
QUICK = ("add", "index_select", "nn.functional.softplus", "nn.functional.avg_pool2d", "sort", "bernoulli", "nonzero")
OPERATOR_SECS = 120.0
KINDS = ("right", "wrong", "refused", "raised", "outside")


def serve(pipe: Connection, way: str) -> None:
    """A child: answers (operator, type) with [kind, detail] of each sample."""
    from torch_operator_cases import calls, compiled, database, exported, name_of, quiet

    from workers.device import detect_target

    quiet()
    target = detect_target("llvm")
    operators = {name_of(operator): operator for operator in database()}
    pipe.send(sorted(operators))
    while True:
        name, dtype = pipe.recv()
        try:
            given = calls(operators[name], dtype)
            found = compiled(given) if way == "compile" else exported(given, target)
            pipe.send([[one.kind, one.detail] for one in found])
        except Exception as error:  # noqa: BLE001 - the database's own code may raise
            pipe.send([["raised", f"{type(error).__name__}: {error}"[:300]]])


class Child:
    """A process that judges operators, started anew when it is gone."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.process: Any = None
        self.names: list[str] = []

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.way), daemon=True)
        self.process.start()
        theirs.close()
        self.names = self.pipe.recv()

    def judge(self, name: str, dtype: str) -> list[list[str]]:
        if self.process is None:
            self.start()
        try:
            self.pipe.send((name, dtype))
            if self.pipe.poll(OPERATOR_SECS):
                answer: list[list[str]] = self.pipe.recv()
                return answer
            reason = f"no answer within {OPERATOR_SECS:.0f} s"
        except (EOFError, ConnectionError):
            reason = "the process ended"
        self.process.kill()
        self.process.join()
        self.process = None
        return [["raised", reason]]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts and shares by type, of operators and of samples."""
    found: dict[str, Any] = {}
    for dtype in sorted({row["type"] for row in rows}):
        mine = [row for row in rows if row["type"] == dtype and row["samples"]]
        samples = Counter(kind for row in mine for kind in row["samples"])
        inside = [row for row in mine if set(row["samples"]) != {"outside"}]
        right = [row for row in inside if set(row["samples"]) <= {"right", "outside"}]
        judged = sum(samples.values()) - samples["outside"]
        found[dtype] = {
            "operators": len(mine),
            "operators_inside": len(inside),
            "operators_right": len(right),
            "share_of_operators_inside": len(right) / max(len(inside), 1),
            "share_of_operators": len(right) / max(len(mine), 1),
            "samples": {kind: samples[kind] for kind in KINDS},
            "share_of_samples_inside": samples["right"] / max(judged, 1),
            "share_of_samples": samples["right"] / max(sum(samples.values()), 1),
            "wrong": sorted(row["operator"] for row in mine if "wrong" in row["samples"]),
            "outside_for": dict(Counter(row["reason"] for row in mine if set(row["samples"]) == {"outside"})),
        }
    return found


def main() -> None:
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    arguments = parser(__doc__)
    arguments.add_argument("--only", help="operators, with commas between; default: all")
    arguments.add_argument("--types", default=",".join(TYPES))
    arguments.add_argument("--work", type=Path, help="folder where rows are kept; default: a new one, removed")
    arguments.add_argument("--compile", action="store_true", help="through torch.compile instead of torch.export")
    options = arguments.parse_args()
    way = "compile" if options.compile else "export"
    child = Child(way)
    child.start()
    names = child.names
    if options.only or options.quick:
        wanted = options.only.split(",") if options.only else list(QUICK)
        if unknown := set(wanted) - set(names):
            arguments.error(f"no operator is called {', '.join(sorted(unknown))}")
        names = wanted
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.work or Path(scratch)) / f"torch_operators_{way}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            (row["operator"], row["type"]): row
            for row in map(json.loads, path.read_text().splitlines() if path.exists() else [])
        }
        with path.open("a") as file:
            for dtype in options.types.split(","):
                for name in names:
                    if (name, dtype) in kept:
                        continue
                    found = child.judge(name, dtype)
                    bad = [detail for kind, detail in found if kind not in ("right", "outside")]
                    reason = next(iter(bad or [detail for _, detail in found if detail]), "")
                    row = {"operator": name, "type": dtype, "samples": [kind for kind, _ in found], "reason": reason}
                    kept[name, dtype] = row
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    chosen = [row for (name, dtype), row in kept.items() if name in names and dtype in options.types.split(",")]
    result = {"environment": environment(way=way, samples=3, types=options.types), "rows": chosen}
    show({**result, "summary": summary(chosen)}, options.json)


if __name__ == "__main__":
    main()
