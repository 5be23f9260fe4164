"""README's figures, each from a result file: PARTS, name -> the Markdown between its marks. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from cells import percent, ratio, table, time, verdict
from latency_cuda import PEERS
from rounds import geometric_mean

Results = dict[str, dict[str, Any]]
NAMES = {
    "resnet18": "ResNet-18 224x224",
    "resnet50": "ResNet-50 224x224",
    "mobilenet_v2": "MobileNetV2 224x224",
    "bert_base_s128": "BERT-base, sequence 128",
    "vit_b16": "ViT-B/16 224x224",
    "convnext_tiny": "ConvNeXt-T 224x224",
    "swin_tiny": "Swin-T 224x224",
    "distilbert_s64": "DistilBERT, sequence 64",
    "gpt2_prefill_s64": "GPT-2, sequence 64",
    "llama_decode_c256": "LLaMA's decoding step, 256 cached",
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
    "inductor": "inductor",
    "inductor_max_autotune": "inductor (max-autotune)",
    "eager": "eager",
}


def link(name: str) -> str:
    return f"[{name}](benchmarks/results/{name}.json)"


def models(found: Results) -> str:
    """Whole models after a minute beside the best of their peers."""
    result = found["latency_minute"]
    place, rows = result["environment"], result["rows"]
    peers = list(dict.fromkeys(peer for row in rows for peer in row["peers"]))

    def best(row: dict[str, Any]) -> str:
        absent = " and ".join(NAMES[peer] for peer in peers if peer not in row["peers"])
        told = f"; {absent} did not take it" if absent else ""
        return f"{NAMES.get(row['best_peer'], row['best_peer'])}, {time(row['peers'][row['best_peer']]['secs'])}{told}"

    def judged(row: dict[str, Any]) -> str:
        interval = row["best_peer_over_ours_interval"]
        return f"{ratio(row['best_peer_over_ours'], interval)}: {verdict(interval)}"

    columns = {
        "model": lambda row: NAMES.get(row["model"], row["model"]),
        "ours": lambda row: time(row["ours_secs"]),
        "best of its peers": best,
        "best peer / ours (95 % interval)": judged,
        "tuning, all included": lambda row: f"{row['tuning_secs']:.0f} s, {row['trials']} trials",
    }
    beside = ", ".join(NAMES[peer] for peer in peers)
    intro = (
        f"Whole models on {place['cores']} cores of an {place['device']}, {place['date']}, float32, batch 1, tuned for a\n"
        f"minute from nothing, beside {beside} ({link('latency_minute')}; geometric mean\n"
        f"{result['summary']['geomean_vs_best_peer']:.2f}):"
    )
    return "\n".join([intro, "", *table(rows, columns)])


def claims(found: Results) -> str:
    """The other figures, with the aims that were not met."""
    summaries = {name: result["summary"] for name, result in found.items()}
    told = [
        (
            f"small models of 3 to 50 µs a call beside the best peer, {len(found['latency_small']['rows'])} of them",
            f"{summaries['latency_small']['geomean_vs_best_peer']:.2f} in the geometric mean,"
            f" {summaries['latency_small']['worst_vs_best_peer']:.2f} at least",
            link("latency_small"),
        ),
        (f"recurrent models beside the best peer, {len(found['recurrent']['rows'])} of them", *_recurrent(summaries)),
        ("whole models on one H100, the fastest peer over ours", _gpu(found["latency_cuda"]), link("latency_cuda")),
        (
            "models that nobody tuned on one H200 (five have two layers), the fastest peer over ours",
            _gpu(found["latency_cuda_h200_untuned"]),
            link("latency_cuda_h200_untuned"),
        ),
        ("stock MetaSchedule on ResNet-18, tuned to its end", _stock(found["latency"]["rows"]), link("latency")),
        ("MetaSchedule's own workloads, stock's time over ours", _operators(found["operators"]), link("operators")),
        (
            "operators that memory bounds, under schedules that need no search",
            f"{summaries['memory_bound']['geomean_vs_baseline']:.1f} times the unscheduled program's speed,"
            f" {summaries['memory_bound']['geomean_vs_eager']:.1f} times eager's,"
            f" {summaries['memory_bound']['geomean_vs_copy']:.2f} of a copy's",
            link("memory_bound"),
        ),
        ("trials a second beside stock MetaSchedule", _rates(found["throughput"]["rows"]), link("throughput")),
        ('`torch.compile(backend="pitchpipe")`', _compiled(found["torch_backend"]["rows"]), link("torch_backend")),
        (
            "look-ups among a million served schedules, p99 at 500 a second",
            f"{summaries['lookup']['p99_ms']:.1f} ms; the aim is 10",
            link("lookup"),
        ),
        (
            "hostile candidates survived, through a real server and worker",
            f"{summaries['isolation']['survived']} of {summaries['isolation']['cases']}; on a GPU"
            f" {'without a server ' * bool(found['isolation_cuda']['environment']['budget'].get('alone'))}"
            f"{summaries['isolation_cuda']['survived']} of {summaries['isolation_cuda']['cases']}",
            f"{link('isolation')}, {link('isolation_cuda')}",
        ),
        (
            "a program beside itself",
            "; on a GPU ".join(
                f"false wins: {summaries[name]['false_wins']} of {summaries[name]['pairs']:,},"
                f" below {percent(summaries[name]['rate_upper95'])} with 95 % confidence"
                for name in ("false_wins", "false_wins_cuda")
            ),
            f"{link('false_wins')}, {link('false_wins_cuda')}",
        ),
        (
            "served times measured again in a new process",
            f"{percent(summaries['agreement']['within'])} of {summaries['agreement']['records']} within the interval that"
            " was printed; the aim is 95 %",
            link("agreement"),
        ),
    ]
    columns = {"claim": lambda row: row[0], "figure": lambda row: row[1], "file": lambda row: row[2]}
    return "\n".join(table(told, columns))


def _gpu(result: dict[str, Any]) -> str:
    """By type and batch: the geometric mean of the models' ratios, as they were queued, and the least one; errors."""
    groups: dict[str, list[tuple[float, str]]] = {}
    ran = [row for row in result["rows"] if not row.get("refused")]
    for row in ran:
        over = row["peers"][row["best_peer"]]["queued_over_ours"]
        told = (over, NAMES.get(row["model"], row["model"]))
        groups.setdefault(f"{row['dtype']} x {row['batch']}", []).append(told)
    counts = Counter(peer for row in ran for peer in row["peers"])
    beside = [peer if times == len(ran) else f"{peer} ({times} of {len(ran)})" for peer, times in counts.items()]
    figures = "; ".join(
        f"{group}: {geometric_mean([over for over, _ in told]):.2f} over {len(told)},"
        f" at least {min(told)[0]:.2f} ({min(told)[1]})"
        for group, told in groups.items()
    )
    inexact = sum(not row["within_tolerance"] for row in ran)
    figures += f". Beyond four times eager's error: {inexact} of {len(ran)}"
    absent = [peer for peer in PEERS if peer not in counts]
    return f"{figures}. Peers: {', '.join(beside)}; not run: {', '.join(absent) or 'none'}"


def _recurrent(summaries: dict[str, Any]) -> tuple[str, str]:
    found = summaries["recurrent"]
    lowest, lost = found["worst_vs_best_peer"], found["lost_to_a_peer"]
    figure = f"{found['geomean_vs_best_peer']:.2f} in the geometric mean, {lowest:.2f} at least"
    return figure + (f"; lost: {', '.join(lost)}" if lost else ""), link("recurrent")


def _stock(rows: list[dict[str, Any]]) -> str:
    row = next(row for row in rows if row["model"] == "resnet18")
    if row["stock"] is None:
        return "not run"
    final = row["peers"]["metaschedule_longer"]
    return (
        f"{time(row['stock_final_secs'])} after {row['stock_tuning_secs']:,.0f} s,"
        f" {ratio(final['over_ours'], final['over_ours_interval'])} times ours;"
        f" ours stood there after {row['time_to_stock_secs']:.0f} s,"
        f" 1/{row['stock_tuning_over_time_to_stock']:.0f} of the time; the aim is 1/40"
    )


def _operators(result: dict[str, Any]) -> str:
    found = result["summary"]
    slower, certain, without = (
        ", ".join(found[name]) or "none" for name in ("slower", "slower_for_certain", "without_a_ratio")
    )
    compared = found["shapes"] - len(found["without_a_ratio"])
    return (
        f"{found['geomean_vs_stock']:.2f} in the geometric mean of {compared} shapes at equal seconds of search,"
        f" where 1.5 is the aim; {found['geomean_vs_stock_at_trials']:.2f} after as many trials."
        f" Slower in the median: {slower}; for certain: {certain}; without a confirmed schedule of ours or stock's:"
        f" {without}."
        f" With confirming counted, {len(found['over_time'])} took longer than stock"
    )


def _rates(rows: list[dict[str, Any]]) -> str:
    rates = sorted(row["trials_per_sec_ratio"] for row in rows)
    return f"{rates[0]:.1f} to {rates[-1]:.1f} times as many, outputs checked; the aim is ten times"


def _compiled(rows: list[dict[str, Any]]) -> str:
    """Of inference; a training step that PyTorch ran in the end is no comparison."""
    rows = [row for row in rows if "load_over_ours" in row]

    def mean(peer: str) -> float:
        return math.exp(sum(math.log(row[f"{peer}_over_ours"]) for row in rows) / len(rows))

    lowest = min(rows, key=lambda row: row["load_over_ours"])
    return (
        f"{len(rows)} models, geometric means: {mean('eager'):.2f} times eager's speed, {mean('inductor'):.2f} times"
        f" inductor's, {mean('load'):.2f} times that of `pitchpipe.load`, where 0.95 is the aim"
        f" ({NAMES.get(lowest['model'], lowest['model'])} has {lowest['load_over_ours']:.2f})"
    )


def right(found: Results) -> str:
    """What comes out right, is refused by name, or is wrong."""
    nodes = found["onnx_nodes"]["summary"]["by_category"]
    others: Counter[str] = sum((Counter(counts) for name, counts in nodes.items() if name != "static"), Counter())
    rows: list[tuple[str, ...]] = [
        _row("ONNX's own node tests, static shapes", Counter(nodes["static"]), "onnx_nodes"),
        _row(
            "the others: data-dependent shapes, sequences, types under a byte, strings, training", others, "onnx_nodes"
        ),
    ]
    for name, way in (("torch_operators", "exported"), ("torch_operators_compile", "through torch.compile")):
        kinds = found[name]["summary"]
        told = ", ".join(f"{kind} {one['operators_right']} of {one['operators_inside']}" for kind, one in kinds.items())
        wrong = sum(len(one["wrong"]) for one in kinds.values())
        refused = sum(one["operators_inside"] - one["operators_right"] for one in kinds.values()) - wrong
        rows.append((f"torch's operator database, {way}", told, str(refused), str(wrong), "0", link(name)))
    ways = {"load": "by `load`", "compile": "by torch.compile", "train": "a training step of each"}
    small = found["coverage"]["summary"]
    for way, told in ways.items():
        rows.append(_row(f"{small['models']} small architectures {told}", Counter(small[way]), "coverage"))
    names = ("set", "right", "refused", "wrong", "failed or late", "file")
    return "\n".join(table(rows, {name: lambda row, at=at: row[at] for at, name in enumerate(names)}))


def _row(name: str, counts: Counter[str], file: str) -> tuple[str, ...]:
    total = sum(counts.values())
    rest = total - counts["right"] - counts["refused"] - counts["wrong"]
    return (
        name,
        f"{counts['right']:,} of {total:,}",
        str(counts["refused"]),
        str(counts["wrong"]),
        str(rest),
        link(file),
    )


PARTS: dict[str, Callable[[Results], str]] = {"models": models, "claims": claims, "right": right}
