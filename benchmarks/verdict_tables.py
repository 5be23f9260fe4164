"""The tables of docs/performance.md about what is right, refused or wrong: of a result, the lines that show its rows. Pure.

Where a file has hundreds of rows they are counted, and all that are not right are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from cells import cut, number, plain, table

Lines = Iterable[str]


def coverage(result: dict[str, Any]) -> Lines:
    rows = result["rows"]
    ways = [way for way in ("load", "compile", "train") if any(way in row for row in rows)]
    verdicts = list(dict.fromkeys(row[way] for row in rows for way in ways if way in row))
    counts = {way: Counter(row[way] for row in rows if way in row) for way in ways}
    yield from table(
        ways,
        {
            "way": lambda way: way,
            **{verdict: lambda way, verdict=verdict: str(counts[way][verdict]) for verdict in verdicts},
            "largest error of those right": lambda way: f"{max(row.get(f'{way}_error', 0.0) for row in rows):.0e}",
        },
    )
    others = [(row, way) for row in rows for way in ways if row.get(way, "right") != "right"]
    nudged = [row for row in rows if row.get("train_nudged")]
    parts = [row for row in rows if row.get("parts_wrong")]
    yield ""
    for row, way in others:
        yield f"- {row['model']}, {way}: {row[way]}" + (f", {row[f'{way}_reason']}" if f"{way}_reason" in row else "")
    for row in nudged:
        yield (
            f"- {row['model']}, train: right, {row['train_error']:.1g} off eager's"
            + (f", {row['train_nudged_error']:.1g} off" if "train_nudged_error" in row else ", and no further off than")
            + " what eager gives for the same inputs rounded otherwise"
        )
    for row in parts:
        yield f"- {row['model']}: {len(row['parts_wrong'])} partitions left to PyTorch, {row['parts_wrong'][0]}"
    if measured := Counter(row["measured"] for row in rows if "measured" in row):
        yield ""
        yield "Where the rows were measured:"
        yield ""
        for where, count in measured.most_common():
            yield f"- {count} of {len(rows)}: {where}"


def onnx_nodes(result: dict[str, Any]) -> Lines:
    rows = result["rows"]
    sets = sorted({row["category"] for row in rows})
    counts = {name: Counter(row["status"] for row in rows if row["category"] == name) for name in sets}
    yield from table(
        sets,
        {
            "set": lambda name: name,
            **{
                status: lambda name, status=status: str(counts[name][status])
                for status in ("right", "refused", "wrong", "raised")
            },
        },
    )
    yield ""
    yield "Refused of the static ones:"
    yield ""
    for row in rows:
        if row["category"] == "static" and row["status"] != "right":
            yield f"- {row['name']}: {row['status']}, {cut(row['detail'])}"


def torch_operators(result: dict[str, Any]) -> Lines:
    names = ("right", "wrong", "refused", "raised", "outside")
    yield from table(
        result["summary"].items(),
        {
            "type": lambda pair: pair[0],
            "operators": lambda pair: number(pair[1]["operators"]),
            "with samples that count": lambda pair: number(pair[1]["operators_inside"]),
            "right in all": lambda pair: number(pair[1]["operators_right"]),
            **{f"samples {name}": lambda pair, name=name: number(pair[1]["samples"][name]) for name in names},
        },
    )
    yield ""
    for row in result["rows"]:
        if {"wrong", "refused", "raised"} & set(row["samples"]):
            yield f"- {row['operator']}, {row['type']}: {', '.join(row['samples'])}; {cut(row['reason'])}"


def other_frontends(result: dict[str, Any]) -> Lines:
    error = {
        "largest error": lambda row: f"{row['largest_error']:.0e}" if row.get("largest_error") is not None else "-"
    }
    return table(result["rows"], plain("source", "model", "verdict") | error)
