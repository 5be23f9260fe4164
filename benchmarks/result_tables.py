"""The tables of docs/performance.md about times and what ends them: of a result, the lines that show its rows. Pure.

Wins and losses alike. Where a file has hundreds of rows they are counted, and all that are not right are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from cells import Row, counted, number, percent, plain, ratio, table, time, verdict

Lines = Iterable[str]


# -- whole models


def latency(result: dict[str, Any]) -> Lines:
    """Peers' cells hold their time, and the ratio over ours."""
    rows = result["rows"]
    peers = list(dict.fromkeys(peer for row in rows for peer in row["peers"]))

    def cell(row: Row, peer: str) -> str:
        found = row["peers"].get(peer)
        if found is None:
            return "not run"
        wrong = "" if found["within_tolerance"] else ", output out of tolerance: no peer"
        return f"{time(found['secs'])}, {ratio(found['over_ours'], found['over_ours_interval'])}{wrong}"

    def best(row: Row) -> str:
        if row["best_peer"] is None:
            return "none"
        return f"{row['best_peer']}: {verdict(row['best_peer_over_ours_interval'])}"

    yield from table(
        rows,
        {
            "model": lambda row: row["model"],
            "ours": lambda row: time(row["ours_secs"]),
            **{f"{peer}, over ours": lambda row, peer=peer: cell(row, peer) for peer in peers},
            "best peer": best,
            "floor / ours": lambda row: percent(row["share_of_floor"]),
            "largest deviation": lambda row: f"{row['deviation']:.0e}",
            "tuning, all included": lambda row: f"{row['tuning_secs']:.0f} s, {row['trials']} trials",
            "tuned, timed": lambda row: f"{row['tuned_on']}, {row['timed_on']}",
        },
    )
    yield ""
    yield (
        "The floor is the direct arithmetic of products and convolutions at the peak that was measured beside the timing;"
        " Winograd's algorithm goes below it."
    )
    for row in rows:
        if (stock := row.get("stock")) is not None:
            yield ""
            yield from stocks(row, stock)


def stocks(row: Row, stock: Row) -> Iterator[str]:
    """What stock MetaSchedule's tuning came to."""
    short, longer = stock["stock"], stock["stock_longer"]
    yield (
        f"Stock MetaSchedule on {row['model']} had {short['trials']} trials after {short['secs']:.0f} s, and"
        f" {longer['trials']} after {longer['secs']:.0f} s ({'all of them' if longer['finished'] else 'stopped there'})."
    )
    if longer["trials"] and (reached := row.get("time_to_stock_secs")) is not None:
        yield (
            f"Ours stood at stock's final {time(row['stock_final_secs'])} after {reached:.0f} s,"
            f" 1/{row['stock_tuning_over_time_to_stock']:.0f} of stock's time."
        )


def untuned(result: dict[str, Any]) -> Lines:
    def beside(row: Row) -> str:
        if row["best_peer"] is None:
            return "none"
        found = ratio(row["best_peer_over_default"], row["best_peer_over_default_interval"])
        return f"{row['best_peer']}, {found}: {verdict(row['best_peer_over_default_interval'])}"

    yield from table(
        result["rows"],
        {
            "model": lambda row: row["model"],
            "default": lambda row: time(row["default_secs"]),
            "tuned": lambda row: time(row["tuned_secs"]),
            "default / tuned": lambda row: ratio(row["default_over_tuned"], row["default_over_tuned_interval"]),
            "best peer, over default": beside,
            "load of the default": lambda row: f"{row['load_secs']:.1f} s",
            "tuning, all included": lambda row: f"{row['tuning_secs']:.0f} s, {row['tuned_on']}",
        },
    )


def quantised(result: dict[str, Any]) -> Lines:
    return table(
        result["rows"],
        {
            "model": lambda row: row["model"],
            "ours, untuned": lambda row: time(row["ours_secs"]),
            **{peer: partial(_peer, peer=peer) for peer in ("onnxruntime", "openvino")},
            "best peer over ours": lambda row: (
                f"{ratio(row['best_peer_over_ours'], row['best_peer_over_ours_interval'])}:"
                f" {verdict(row['best_peer_over_ours_interval'])}"
            ),
            "ours from ONNX Runtime": lambda row: number(row["deviation"]),
            "OpenVINO from ONNX Runtime": lambda row: number(row["peers_deviate"]),
        },
    )


def _peer(row: Row, peer: str) -> str:
    return time(row["peers"][peer]) if peer in row["peers"] else "refused"


def before_after(result: dict[str, Any]) -> Lines:
    return table(
        result["rows"],
        {
            "model": lambda row: row["model"],
            "before": lambda row: time(row["before_secs"]),
            "after": lambda row: time(row["after_secs"]),
            "before / after": lambda row: ratio(row["before_over_after"], row["before_over_after_interval"]),
            "deviation": lambda row: number(row["deviation"]),
            "schedules before": lambda row: counted(row["before_tiers"]),
            "after ": lambda row: counted(row["after_tiers"]),
        },
    )


def torch_backend(result: dict[str, Any]) -> Lines:
    """A row that does not say whether anything compiled ran says it by outputs that are eager's to the last bit."""
    kept = [row for row in result["rows"] if not row.get("runs_ours", row["deviation"] > 0)]

    def cell(row: Row, peer: str) -> str:
        if f"{peer}_secs" not in row:
            return "-"
        if row in kept:
            return time(row[f"{peer}_secs"])
        interval = row[f"{peer}_over_ours_interval"]
        return f"{time(row[f'{peer}_secs'])}, {ratio(row[f'{peer}_over_ours'], interval)}: {verdict(interval)}"

    names = {"eager": "eager", "inductor": "inductor", "load": "`pitchpipe.load`"}
    yield from table(
        result["rows"],
        {
            "model": lambda row: row["model"],
            "ours": lambda row: time(row["ours_secs"]),
            **{f"{name}, over ours": lambda row, peer=peer: cell(row, peer) for peer, name in names.items()},
            "largest deviation": lambda row: f"{row['deviation']:.0e}",
        },
    )
    if kept:
        yield ""
        yield (
            f"Kept by PyTorch: {', '.join(row['model'] for row in kept)}. Nothing that was compiled ran there, and a ratio"
            " would compare eager with itself."
        )


# -- the engine


def throughput(result: dict[str, Any]) -> Lines:
    def side(row: Row, name: str) -> str:
        return f"{row[f'{name}_trials_per_sec']:.2f}/s, {row[f'{name}_timed']} of {row[f'{name}_trials']} timed"

    def failures(row: Row) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in row["stock_failures"].items()) or "none"

    rows = result["rows"]
    few = [row for row in rows if 2 * row["stock_timed"] < row["stock_trials"]]
    yield from table(
        rows,
        {
            "program": lambda row: row["workload"],
            "stock": lambda row: side(row, "stock"),
            "stock's failures": lambda row: failures(row) if "stock_failures" in row else "not recorded",
            "ours, warm": lambda row: side(row, "our"),
            "rates": lambda row: ratio(None if row in few else row["trials_per_sec_ratio"]),
            "rates, cold": lambda row: ratio(None if row in few else row.get("cold_trials_per_sec_ratio")),
            "stock's best": lambda row: time(row["stock_median_secs"]),
            "ours": lambda row: time(row["our_median_secs"]),
            "stock's best / ours": lambda row: ratio(row["stock_median_over_ours"]),
            "batch of one, of a new program": lambda row: (
                f"{time(row['batch_of_one_secs'])}, {time(row['batch_of_one_of_a_new_workload_secs'])}"
            ),
        },
    )
    if few:
        yield ""
        names = ", ".join(row["workload"] for row in few)
        yield f"Stock timed less than half of its trials of {names}: no ratio of rates follows from that."


def lookup(result: dict[str, Any]) -> Lines:
    rows = result["rows"]
    yield from table(
        [row for row in rows if "rate" in row],
        {
            **plain("row", "keys", "clients"),
            "requests a second": lambda row: f"{row['rate']:,.0f}",
            "answer": lambda row: f"{row['answer_bytes'] / 1e3:.0f} KB",
            **{part: lambda row, part=part: time(row[f"{part}_secs"]) for part in ("p50", "p90", "p99", "max")},
            "server's CPU": lambda row: percent(row["server_cpu"]),
        },
    )
    yield ""
    for row in rows:
        if row["row"] == "growth":
            yield (
                f"From 10 thousand to a million records, keys asked for: {row['keys']}. {time(row['small_secs'])} to"
                f" {time(row['large_secs'])}, {ratio(row['ratio'])} times."
            )


def dashboard_load(result: dict[str, Any]) -> Lines:
    rows = result["rows"]
    yield from table(
        [row for row in rows if row["row"] == "page"],
        {**plain("page"), "p50": lambda row: time(row["p50_secs"]), "p95": lambda row: time(row["p95_secs"])},
    )
    for row in rows:
        if row["row"] == "watched":
            yield ""
            yield (
                f"A job that reports a batch a second, for {row['secs']:.0f} s: {percent(row['core'])} of a core while"
                f" somebody watches it, {percent(row['idle_core'])} while nobody does; {row['points']} points were sent."
            )


def isolation(result: dict[str, Any]) -> Lines:
    return table(
        result["rows"],
        {
            **plain("kind", "ends_as"),
            "survived": lambda row: f"{row['survived']} of {row['runs']}",
            "right kind, others unharmed": lambda row: f"{row['right_kind']}, {row['others_unharmed']}",
            "left: processes, files, descriptors": lambda row: (
                f"{row['leaked_processes']}, {row['leaked_files']}, {row['leaked_descriptors']}"
            ),
            "grown": lambda row: f"{max(row['worker_grown_bytes'], row['zygote_grown_bytes']) >> 10} KiB",
            "a run": lambda row: time(row["secs_per_run"]),
        },
    )


def false_wins(result: dict[str, Any]) -> Lines:
    return table(
        result["rows"],
        {
            **plain("program", "pairs", "false_wins"),
            "at most, with 95 % confidence": lambda row: percent(row["rate_upper95"]),
            "by samples alone": lambda row: number(row["by_samples_alone"]),
            "median": lambda row: time(row["median_secs"]),
            "half an interval": lambda row: percent(row["interval_half_width_median"]),
        },
    )


def agreement(result: dict[str, Any]) -> Lines:
    return table(
        result["rows"],
        {
            "task": lambda row: row["task"],
            "served": lambda row: row["served"],
            "its median (interval)": lambda row: (
                f"{time(row['served_secs'])} ({time(row['secs_low'])} to {time(row['secs_high'])})"
            ),
            "later": lambda row: time(row["later_secs"]),
            "later / served": lambda row: ratio(row["ratio"]),
            "within": lambda row: "yes" if row["within"] else "**no**",
        },
    )


# -- searches replayed


def learning(result: dict[str, Any]) -> Lines:
    rows = result["rows"]

    def by_trials(name: str, spread: str) -> dict[str, Callable[[Row], str]]:
        found = [(n, f"{name}@{n}") for n in (4, 8, 16, 32, 64)]
        return {str(n): lambda row, key=key: ratio(row[key], row[f"{key}_{spread}"]) for n, key in found}

    yield from table(
        [row for row in rows if row["kind"] == "marks"],
        {
            "cost model": lambda row: row["name"],
            **plain("workloads", "pairwise", "pairwise_distinct", "peak@1", "peak@5"),
        },
    )
    yield ""
    yield "Regret after so many trials (range over repetitions):"
    yield ""
    yield from table(
        [row for row in rows if row["kind"] == "search"],
        {
            "search": lambda row: row["name"],
            **by_trials("regret", "range"),
        },
    )
    for row in rows:
        if row["kind"] == "default":
            yield ""
            yield f"The default schedules, without a trial: {ratio(row['regret'])}, of {row['workloads']} workloads."
        if row["kind"] == "seeds":
            regrets = ", ".join(f"{ratio(row[f'regret@{n}'])} of {n}" for n in (1, 2, 4, 8))
            yield f"The best of the first analytic seeds: {regrets}."
    yield ""
    yield "What a part of the search is worth, regret without it over regret with it:"
    yield ""
    yield from table(
        [row for row in rows if row["kind"] == "part"],
        {
            "part": lambda row: row["name"],
            **by_trials("worth", "interval"),
            "helps after": lambda row: ", ".join(map(str, row["helps_at"])) or "-",
            "harms after": lambda row: ", ".join(map(str, row["harms_at"])) or "-",
        },
    )
