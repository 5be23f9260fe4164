"""How much of torch's operator database is right: exported and built by `load`'s steps, or compiled by torch.compile.

    python benchmarks/torch_operators.py --json --work DIR [--compile] [--types float32,int64] [--only add,abs] [--jobs 2]

Up to three samples of each operator in each type. A row is an operator and a type: what became of each sample (right, wrong,
refused, raised, outside) and the first reason. `outside` are samples that no static inference program holds: random draws,
shapes that depend on data, sparse and complex tensors, results that are no tensors, programs that write into their inputs,
memory that nobody has written, tensors without elements among inputs and results, and what eager mode or torch.export
refuses; shares are given with and without them. An operator is right if all its samples are.

Through torch.compile none is outside: it has to answer as eager mode does, whatever that is (torch_compiled_cases.py), and
there is a sample more of operators that have an in-place form. `ran` says of each sample whether compiled code answered,
or eager mode, and why.

--jobs children judge operators side by side, each on one core. One that ends, or takes longer than an operator may, is
replaced, and its operator is `raised`. Rows are kept in --work as they come: a run that was stopped goes on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from environment import environment, parser, show

TYPES = ("float32", "int64", "float16", "bfloat16")
QUICK = ("add", "index_select", "nn.functional.softplus", "nn.functional.avg_pool2d", "sort", "bernoulli", "nonzero")
OPERATOR_SECS = 120.0
ENDING_SECS = 5.0
KINDS = ("right", "wrong", "refused", "raised", "outside")


def serve(pipe: Connection, way: str, folder: Path) -> None:
    """A child: answers (operator, type) with [kind, detail, what ran] of each sample."""
    from torch_operator_cases import Outcome, calls, database, exported, name_of, quiet

    from workers.device import detect_target

    quiet()
    operators = {name_of(operator): operator for operator in database()}
    if way == "compile":
        import torch_compiled_cases

        torch_compiled_cases.prepare(folder)
    target = detect_target("llvm")

    def judged(name: str, dtype: str) -> Sequence[Outcome]:
        if way == "compile":
            return list(torch_compiled_cases.compiled(operators[name], dtype))
        return exported(calls(operators[name], dtype), target)

    pipe.send(list(operators))
    while True:
        try:
            name, dtype = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send([[one.kind, one.detail, one.ran] for one in judged(name, dtype)])
        except Exception as error:  # noqa: BLE001 - the database's own code may raise
            pipe.send([["raised", f"{type(error).__name__}: {error}"[:300], ""]])


class Child:
    """A process that judges operators, started anew when it is gone."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way, self.folder = way, folder
        self.process: Any = None
        self.names: list[str] = []

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.way, self.folder), daemon=True)
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
        return [["raised", reason, ""]]

    def end(self) -> None:
        if self.process is not None:
            self.pipe.close()
            self.process.join(ENDING_SECS)
            self.process.kill()


def rows_of(work: Sequence[tuple[str, str]], children: Sequence[Child]) -> Iterator[dict[str, Any]]:
    """A row of each operator and type, as they come; a child judges one at a time."""
    free: queue.SimpleQueue[Child] = queue.SimpleQueue()
    for child in children:
        free.put(child)

    def judge(name: str, dtype: str) -> dict[str, Any]:
        child = free.get()
        try:
            found = child.judge(name, dtype)
        finally:
            free.put(child)
        bad = [detail for kind, detail, _ in found if kind not in ("right", "outside")]
        reason = next(iter(bad or [detail for _, detail, _ in found if detail]), "")
        ran = {"ran": [how for _, _, how in found]} if child.way == "compile" else {}
        return {"operator": name, "type": dtype, "samples": [kind for kind, _, _ in found], "reason": reason, **ran}

    with ThreadPoolExecutor(len(children)) as pool:
        for future in as_completed([pool.submit(judge, name, dtype) for name, dtype in work]):
            yield future.result()


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
            "samples_compiled": sum(how == "compiled" for row in mine for how in row.get("ran", ())),
            "share_of_samples_inside": samples["right"] / max(judged, 1),
            "share_of_samples": samples["right"] / max(sum(samples.values()), 1),
            "wrong": sorted(row["operator"] for row in mine if "wrong" in row["samples"]),
            "outside_for": dict(Counter(row["reason"] for row in mine if set(row["samples"]) == {"outside"})),
        }
    return found


def main() -> None:
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    arguments = parser(__doc__)
    arguments.add_argument("--only", help="operators, with commas between; default: all")
    arguments.add_argument("--types", default=",".join(TYPES))
    arguments.add_argument("--work", type=Path, help="folder where rows are kept; default: a new one, removed")
    arguments.add_argument("--compile", action="store_true", help="through torch.compile instead of torch.export")
    arguments.add_argument("--jobs", type=int, default=2, help="operators that are judged side by side; default: 2")
    options = arguments.parse_args()
    way, types = "compile" if options.compile else "export", options.types.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        work = (options.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        children = [Child(way, work / "cache") for _ in range(max(options.jobs, 1))]
        try:
            children[0].start()
            names = children[0].names
            if options.only or options.quick:
                wanted = options.only.split(",") if options.only else list(QUICK)
                if unknown := set(wanted) - set(names):
                    arguments.error(f"no operator is called {', '.join(sorted(unknown))}")
                names = wanted
            path = work / f"torch_operators_{way}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            kept = {(row["operator"], row["type"]): row for row in map(json.loads, lines)}
            left = [(name, dtype) for dtype in types for name in names if (name, dtype) not in kept]
            with path.open("a") as file:
                for row in rows_of(left, children):
                    kept[row["operator"], row["type"]] = row
                    file.write(json.dumps(row) + "\n")
                    file.flush()
        finally:
            for child in children:
                child.end()
    chosen = [kept[name, dtype] for dtype in types for name in names]
    result = {"environment": environment(way=way, samples=3, types=options.types), "rows": chosen}
    show({**result, "summary": summary(chosen)}, options.json)


if __name__ == "__main__":
    main()
