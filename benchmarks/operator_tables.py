"""The tables of docs/performance.md that are of operators and of graph passes: as result_tables.py. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from cells import Row, number, plain, ratio, table, time

Lines = Iterable[str]


def operators(result: dict[str, Any]) -> Lines:
    rows = result["rows"]
    peak = statistics.median(row["peak_flops_per_sec"] for row in rows)

    def judged(row: Row) -> str:
        if row["ratio"] is None:
            return "; ".join(
                f"{side}: {row[f'{side}_failure']}" for side in ("stock", "ours") if f"{side}_failure" in row
            )
        (low, high), (our_low, our_high) = row["stock_interval_secs"], row["ours_interval_secs"]
        return "faster" if low > our_high else "**slower**" if high < our_low else "tie"

    def shares(row: Row) -> str:
        found = [row[f"{side}_gflops_per_sec"] for side in ("stock", "ours")]
        return ", ".join("-" if rate is None else f"{rate * 1e11 / peak:.0f} %" for rate in found)

    yield from table(
        rows,
        {
            "workload": lambda row: row["workload"],
            "stock": lambda row: time(row["stock_median_secs"]),
            "ours": lambda row: time(row["ours_median_secs"]),
            "stock / ours": lambda row: ratio(row["ratio"]),
            "by intervals": judged,
            "after as many trials": lambda row: ratio(row["ratio_at_trials"]),
            "share of peak: stock, ours": shares,
            "trials: stock, ours": lambda row: f"{row['stock_trials']}, {row['our_trials']}",
            "seconds: stock, our search, with confirming": lambda row: (
                f"{row['stock_secs']:.0f}, {row['our_secs']:.0f}, {row['our_total_secs']:.0f}"
            ),
        },
    )
    yield ""
    yield f"Shares are of {peak / 1e9:.0f} GFLOP/s, the median of the peaks that the rows' runs measured."
    if odd := [row for row in rows if abs(row["peak_flops_per_sec"] / peak - 1) > 0.1]:
        told = ", ".join(f"{row['workload']} {row['peak_flops_per_sec'] / 1e9:.0f}" for row in odd)
        yield f"Runs that measured another peak, by which the file divides: {told} GFLOP/s."
    yield "Transposed convolutions may exceed it: the count includes products with the zeros between the inputs."
    if any("ours_failure" in row for row in rows):
        yield ("Where nothing of ours was found, the seconds were over before a winner was confirmed.")


def operator_latency(result: dict[str, Any]) -> Lines:
    def over(row: Row) -> str:
        text = ratio(row["eager_over_ours"], row["eager_over_ours_interval"])
        return f"**{text}**" if row["eager_over_ours_interval"][1] < 1 else text

    yield from table(
        result["rows"],
        {
            "operator": lambda row: row["operator"],
            "eager": lambda row: time(row["eager_secs"]),
            "ours": lambda row: time(row["ours_secs"]),
            "eager / ours": over,
            "error": lambda row: f"{row['error']:.1e}",
        },
    )
    yield ""
    mean = result["summary"]["eager_over_ours"]
    yield f"The geometric mean of eager over ours is {mean:.2f}. Slower for certain is set in bold."


def memory_bound(result: dict[str, Any]) -> Lines:
    def speed(side: str) -> Callable[[Row], str]:
        return lambda row: f"{row[f'{side}_gb_per_sec']:.1f}"

    sides = {"unscheduled": "baseline", "ours": "ours", "eager": "eager", "copy": "copy"}
    return table(
        result["rows"],
        {
            "operator": lambda row: row["operator"],
            **{f"{name}, GB/s": speed(side) for name, side in sides.items()},
            **{
                f"ours over {name}": lambda row, side=side: ratio(row[f"vs_{side}"])
                for name, side in sides.items()
                if side != "ours"
            },
        },
    )


def preparation(result: dict[str, Any]) -> Lines:
    rows = result["rows"]
    counted = plain("model", "after", "kernels", "functions", "contractions", "with_register_tiles")
    megabytes = {
        "MB written": lambda row: number(row["written_bytes"] / 1e6),
        "of it only moved": lambda row: number(row["moving_bytes"] / 1e6),
    }
    yield from table([row for row in rows if "after" in row], counted | megabytes)
    if timed := [row for row in rows if "variant" in row]:
        yield ""
        times = {"time": lambda row: time(row["median_secs"]), "ratio": lambda row: ratio(row["ratio"])}
        yield from table(timed, plain("variant", "layers", "kernels") | times)


def side_by_side(result: dict[str, Any]) -> Lines:
    """What a process of each side takes alone and in company, and the slowest turn."""
    times = {
        name: lambda row, field=field: time(row[field])
        for name, field in (
            ("alone", "alone_secs"),
            ("together", "together_secs"),
            ("slowest together", "slowest_together_secs"),
        )
    }
    cost = {"together over alone": lambda row: ratio(row["together_secs"] / row["alone_secs"])}
    return table(result["rows"], plain("model", "side", "processes") | times | cost)
