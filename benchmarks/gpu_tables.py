"""The tables of docs/performance.md that are of a GPU: as result_tables.py. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cells import Row, number, percent, ratio, table, time, verdict

Lines = Iterable[str]


def latency_cuda(result: dict[str, Any]) -> Lines:
    """Peers' cells hold what the device takes for a call that is queued, its ratio over ours, and the call with a wait."""
    rows = [row for row in result["rows"] if not row.get("refused")]
    peers = list(dict.fromkeys(peer for row in rows for peer in row["peers"]))

    def cell(row: Row, peer: str) -> str:
        if (found := row["peers"].get(peer)) is None:
            return "not run"
        over = ratio(found["queued_over_ours"], found["queued_over_ours_interval"])
        return f"{time(found['queued_secs'])}, {over}; wall {time(found['wall_secs'])}"

    yield from table(
        rows,
        {
            "model": lambda row: f"{row['model']} {row['dtype']} x {row['batch']}",
            "ours": lambda row: f"{time(row['queued_secs'])}; wall {time(row['wall_secs'])}",
            **{f"{peer}, over ours": lambda row, peer=peer: cell(row, peer) for peer in peers},
            "best peer": lambda row: f"{row['best_peer']}: {verdict(_interval_of_best(row))}",
            "kernels": lambda row: f"{row['kernels']:.0f}",
            "of the best peer, sum": lambda row: (
                "{kernels:.0f}, ".format(**row["peers"][row["best_peer"]])
                + time(row["peers"][row["best_peer"]]["kernel_secs"])
            ),
            "error, eager's": lambda row: f"{row['error']:.0e}, {row['peers']['eager']['error']:.0e}",
            "tasks / queued": _tasks_over_queued,
            "tuning, all included": lambda row: (
                f"{row['tuning_secs']:.0f} s, {row['trials']} trials, {row['failed_trials']} failed"
                + "".join(f", {count} {kind}" for kind, count in row.get("failures", {}).items())
            ),
            "commit": lambda row: row["commit"][:7],
        },
    )
    yield from _backend([row for row in rows if row.get("torch_backend")])
    for row in rows:
        if row.get("table"):
            yield from _tasks(row)
    for row in result["rows"]:
        if row.get("refused"):
            yield ""
            yield f"{row['model']} {row['dtype']} x {row['batch']} was not run: {row['refused']}."


def _backend(rows: Sequence[Row]) -> Lines:
    """torch.compile with our backend beside pitchpipe.load; nothing where no row has it."""
    if not rows:
        return
    yield ""
    yield 'torch.compile(backend="pitchpipe"), mode reduce-overhead, of the same schedules, over `pitchpipe.load`:'
    yield ""

    def over(row: Row) -> str:
        found = row["torch_backend"]
        return ratio(found["queued_over_ours"], found["queued_over_ours_interval"])

    yield from table(
        rows,
        {
            "model": lambda row: f"{row['model']} {row['dtype']} x {row['batch']}",
            "queued": lambda row: f"{time(row['torch_backend']['queued_secs'])}, {over(row)}",
            "wall": lambda row: (
                f"{time(row['torch_backend']['wall_secs'])}, {ratio(row['torch_backend']['wall_over_ours'])}"
            ),
            "kernels, of load": lambda row: f"{row['torch_backend']['kernels']:.0f}, {row['kernels']:.0f}",
            "error": lambda row: f"{row['torch_backend']['error']:.0e}",
            "partitions": lambda row: ", ".join(
                f"{one['operators']} operators: {one['runs']}" for one in row["torch_backend"]["partitions"]
            ),
        },
    )


def _tasks(row: Row) -> Lines:
    """The costliest tasks of a model, a call each."""

    def beside(found: Row, name: str) -> str:
        if (secs := found.get(f"{name}_secs")) is None:
            return "-"
        return f"{time(secs)}, {ratio(secs / found['ours_secs'])}"

    yield ""
    yield (
        f"{row['model']} {row['dtype']} x {row['batch']}, its costliest tasks, a call in a CUDA graph of such calls alone;"
        " times of others with their ratio over ours:"
    )
    yield ""
    yield from table(
        row["table"],
        {
            "task": lambda found: f"{found['weight']} x {found['task']}",
            "contraction": lambda found: number(found["contraction"]),
            "ours": lambda found: time(found.get("ours_secs")),
            "cuDNN, cuBLAS, eager": lambda found: found.get("equivalent") or beside(found, "library"),
            "inductor": lambda found: beside(found, "inductor"),
        },
    )


def _tasks_over_queued(row: Row) -> str:
    tasks = row["tasks"]
    if not tasks:
        return "not tuned"
    if untimed := sum(task["secs"] is None for task in tasks):
        return f"{untimed} of {len(tasks)} tasks have default schedules"
    return percent(sum(task["weight"] * task["secs"] for task in tasks) / row["queued_secs"])


def memory_bound_cuda(result: dict[str, Any]) -> Lines:
    """Seconds of ours, of inductor's kernels and of a copy of as many bytes; what is wrong is said."""
    yield from table(
        result["rows"],
        {
            "operator": lambda row: row["operator"],
            "MB": lambda row: number(row["bytes"] / 1e6),
            "launches": lambda row: str(row["launches"]),
            "ours": lambda row: time(row["ours_secs"]),
            "inductor": lambda row: time(row["inductor_secs"]),
            "copy": lambda row: time(row["copy_secs"]),
            "of a copy's bandwidth": lambda row: percent(row["share_of_copy"]),
            "ours over inductor": lambda row: f"{row['over_inductor']:.2f}",
            "result": lambda row: "right" if row["agrees"] else "**wrong**",
        },
    )


def operators_cuda(result: dict[str, Any]) -> Lines:
    """Times of all three with their errors, losses marked; and what the spike measured, where it had the shape."""
    ran = [row for row in result["rows"] if not row.get("refused")]

    def beside(row: Row, peer: str) -> str:
        if row[f"{peer}_secs"] is None:
            return "-"
        return f"{time(row[f'{peer}_secs'])}, {ratio(row[f'{peer}_over_ours'])}"

    def best(row: Row) -> str:
        over = row["best_peer_over_ours"]
        return f"{row['best_peer']}: " + (ratio(over) if over >= 1 else f"**{ratio(over)}**")

    def speed(row: Row) -> str:
        return (
            f"{number(row['tflops']['ours'])} TFLOP/s" if "tflops" in row else f"{row['gb_per_sec']['ours']:.0f} GB/s"
        )

    def noted(row: Row) -> str:
        return f"{time(row['notes_secs'])}, {ratio(row['notes_over_ours'])}" if "notes_secs" in row else "-"

    def errors(row: Row) -> str:
        found = [row[f"{who}_error"] for who in ("ours", "eager", "autotune")]
        told = ", ".join("-" if error is None else f"{error:.0e}" for error in found)
        return told if row["within_tolerance"] else f"**wrong**: {told}"

    yield from table(
        ran,
        {
            "operator": lambda row: row["name"],
            "shape": lambda row: row["shape"],
            "ours": lambda row: time(row["ours_secs"]),
            "eager, over ours": lambda row: beside(row, "eager"),
            "max-autotune, over ours": lambda row: beside(row, "autotune"),
            "best peer over ours": best,
            "ours does": speed,
            "spike, over ours": noted,
            "error: ours, eager, max-autotune": errors,
            "tuning, all included": lambda row: (
                f"{row['tuning_secs']:.0f} s, {row['trials']} trials, {row['failed_trials']} failed"
            ),
            "commit": lambda row: row["commit"][:7],
        },
    )
    for row in ran:
        if told := row.get("autotune_refused"):
            yield ""
            yield f"{row['name']} was not run by max-autotune: {told}."
    for row in result["rows"]:
        if told := row.get("refused"):
            yield ""
            yield f"{row['name']} ({row['shape']}) was not run: {told}."
    if missing := result.get("summary", {}).get("not_measured"):
        yield ""
        yield f"Not measured yet: {', '.join(missing)}."


def template_trials(result: dict[str, Any]) -> Lines:
    """Regrets as a geometric mean over workloads, and of the worst one."""
    yield from table(
        result["rows"],
        {
            "points ordered by": lambda row: row["order"],
            **{
                f"regret after {n} (worst)": lambda row, n=n: f"{row[f'regret_{n}']:.3f} ({row[f'worst_{n}']:.2f})"
                for n in (1, 4, 8, 16, 32)
            },
            "pairwise": lambda row: f"{row['pairwise']:.3f}",
        },
    )


def _interval_of_best(row: Row) -> Any:
    return row["peers"][row["best_peer"]]["queued_over_ours_interval"]
