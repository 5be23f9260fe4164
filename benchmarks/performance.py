"""Writes docs/performance.md, and the figures of README.md, from the result files.

    python benchmarks/performance.py            # writes both
    python benchmarks/performance.py --check    # writes nothing; exits with 1 where one of them is not up to date

Every file of results/ has a section: what was compared, where, under which versions and budget, its table and its summary.
A field that a file does not have is called "not recorded". README's figures lie between lines `<!-- figures: NAME -->` and
`<!-- end of figures -->`. This script imports neither the compiler nor PyTorch.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_tables
import job_tables
import operator_tables
import readme_figures
import result_tables as tables
import verdict_tables as verdicts
from cells import number

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
NOT_RECORDED = "not recorded"
RECORDED = ("commit", "measure_version", "device")
"""What every result file has to say of itself."""
FIGURES = re.compile(r"(?<=<!-- figures: )(\w+)( -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)

HEAD = """# What was measured

Written by `benchmarks/performance.py` from the files of [benchmarks/results](../benchmarks/results): change those, not
this page.

Times are medians, intervals are of 95 %. Sides took turns (`benchmarks/rounds.py`). A ratio above 1 means that ours was
faster; it is the median of the ratios within rounds, so it need not be the ratio of two medians. *Faster* and *slower*
are said where the whole interval is on one side of 1, else it is a *tie*. Figures of different machines do not compare:
here an AMD EPYC with 32 KiB of L1d is a Zen 4, one with 48 KiB a Zen 5.
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Of the page: a result file (its name without the suffix), the script that made it, and how its rows are shown."""

    file: str
    title: str
    script: str
    table: Callable[[dict[str, Any]], Iterable[str]]
    more: str = ""
    """What the first sentence of the script's docstring does not say."""


SECTIONS = (
    Section(
        file="latency",
        title="Whole models after five minutes",
        script="latency",
        table=tables.latency,
        more="Here the two that have five minutes, and on ResNet-18 stock MetaSchedule to its end (`--stock-seconds 1200`);"
        ' all ten follow, after a minute. `torch_backend` is `torch.compile(backend="pitchpipe")` without a database, which'
        " stays in eager mode; its own section has it with one.",
    ),
    Section(
        file="latency_minute",
        title="Whole models after a minute",
        script="latency",
        table=tables.latency,
        more="Here with `--seconds 60` and from empty databases, beside ONNX Runtime and OpenVINO.",
    ),
    Section(
        file="latency_minute_avx2",
        title="Whole models after a minute, with AVX2",
        script="latency",
        table=tables.latency,
        more="As above, on processors with 16 vector registers of 8 lanes and half the speed of those above.",
    ),
    Section(
        file="latency_others",
        title="Other models after a minute, with AVX2",
        script="latency",
        table=tables.latency,
        more="Models of `benchmarks/others.py`. Whisper has no peer: neither exporter takes it.",
    ),
    Section(
        file="latency_others_more",
        title="More of these models after a minute, with AVX2",
        script="latency",
        table=tables.latency,
        more="Others of `benchmarks/others.py`, at a later commit. Qwen2 has no peer beside eager.",
    ),
    Section(
        file="latency_others_further",
        title="Four more of these models after a minute, with AVX2",
        script="latency",
        table=tables.latency,
        more="Segmentation, pools in place of attention, grouped convolutions, and speech.",
    ),
    Section(
        file="budgets",
        title="Budgets of seconds",
        script="budgets",
        table=job_tables.budgets,
        more="Shares are of the job's seconds.",
    ),
    Section(file="quantised", title="Whole models in 8 bits", script="quantised", table=tables.quantised),
    Section(
        file="untuned",
        title="Whole models that nobody tuned",
        script="untuned",
        table=tables.untuned,
        more="Schedules of the minute above.",
    ),
    Section(
        file="latency_small",
        title="Small models",
        script="latency",
        table=tables.latency,
        more="Models of `benchmarks/small.py`, whose calls take 3 to 50 µs.",
    ),
    Section(
        file="latency_inductor",
        title="Whole models beside inductor's defaults",
        script="latency",
        table=tables.latency,
        more="A minute of tuning each, from empty databases; every mode of torch.compile for a CPU among the peers.",
    ),
    Section(
        file="recurrent",
        title="Recurrent models",
        script="latency",
        table=tables.latency,
        more="Models of `benchmarks/recurrent.py`.",
    ),
    Section(
        file="latency_cuda",
        title="Whole models on a GPU",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="Times are those of calls that are queued; `wall` has the wait for each. A minute of tuning each, from an "
        "empty database; four runs went on side by side, each with a GPU and 16 cores. max-autotune stands beside BERT, "
        "where it was the best of PyTorch's modes before; not run: batches of eight in bfloat16 but ResNet-50, and those of "
        "the models from ConvNeXt on. In float32 everybody may use TF32: what is slower or beyond four times eager's error "
        "there read weights that lay badly, and cut bits off where it now rounds (ADR 0090, not measured since).",
    ),
    Section(
        file="latency_cuda_h100_modes",
        title="Whole models on an H100, beside every mode of PyTorch's compiler",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="As above, max-autotune among the peers. Runs of one model each, put together; up to four went on side by "
        "side, each with a GPU and 16 cores. Commits stand in the rows.",
    ),
    Section(
        file="latency_cuda_h100_batch8",
        title="Batches of eight on an H100, points of templates ordered by experience",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="A minute of tuning from an empty database (ADR 0087). Of PyTorch's modes the one that was best before.",
    ),
    Section(
        file="latency_cuda_h200_modes",
        title="Whole models on an H200, beside every mode of PyTorch's compiler",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="As above; four runs side by side, each with a GPU and 16 cores.",
    ),
    Section(
        file="latency_cuda_h200_compiled",
        title="torch.compile on an H200",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="As above, after 150 s of tuning each; two runs side by side. What torch.compile takes longer is the host's: "
        "guards and a look at each weight, 200 of them in BERT.",
    ),
    Section(
        file="latency_cuda_h200_others",
        title="Other models on an H200",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="Models of `benchmarks/others.py`, a minute of tuning each from an empty database, with 16 cores and one GPU. "
        "Rows name their commits: those of 161933b and later are of attention that reads what it is made of and of large "
        "norms in three kernels (ADR 0102 to 0104), those of 850f01d of reshapes that keep nothing apart, too (ADR 0105), "
        "those of a26e0ce of scaled channels in a kernel of their own (ADR 0107). "
        "The others are of before, so that models with attention may be faster now than they say.",
    ),
    Section(
        file="latency_cuda_h200_columns",
        title="Tiles of 96 and 192 columns, on an H200",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="Each model tuned twice side by side, once with `COLUMNS = POWERS` in `tuner/templates/text.py`. The products "
        "of queries, keys and values gain; of the whole models only ViT does, as some 200 trials find other things each "
        "time.",
    ),
    Section(
        file="before_after",
        title="Whole models before and after the folders were moved",
        script="before_after",
        table=tables.before_after,
        more="Tuned for 110 s each by the code after.",
    ),
    Section(
        file="before_after_classifiers",
        title="Models that give less than they compute, before and after slices were hoisted",
        script="before_after",
        table=tables.before_after,
        more="The models of `--models benchmarks/classifiers.py`, not tuned: default builds on both sides (ADR 0084).",
    ),
    Section(file="torch_backend", title="torch.compile", script="torch_backend", table=tables.torch_backend),
    Section(
        file="operators", title="MetaSchedule's own workloads", script="operators", table=operator_tables.operators
    ),
    Section(
        file="operators_cuda",
        title="Operators on a GPU",
        script="operators_cuda",
        table=gpu_tables.operators_cuda,
        more="Losses are set in bold. A spike of templates in Triton and Gluon had measured the first fifteen shapes on an "
        "H200, with weights from memory in every call. Each shape beside its peers on one GPU: an H100, or for the last 40 "
        "to be measured, at 7f99d00, an H200.",
    ),
    Section(
        file="memory_bound",
        title="Operators that memory bounds",
        script="memory_bound",
        table=operator_tables.memory_bound,
    ),
    Section(
        file="memory_bound_cuda",
        title="Operators that memory bounds, GPU",
        script="memory_bound_cuda",
        table=gpu_tables.memory_bound_cuda,
    ),
    Section(file="preparation", title="Graph preparation", script="preparation", table=operator_tables.preparation),
    Section(file="throughput", title="Trials a second, CPU", script="throughput", table=tables.throughput),
    Section(file="throughput_cuda", title="Trials a second, GPU", script="throughput", table=tables.throughput),
    Section(
        file="learning",
        title="Searches replayed",
        script="learning",
        table=tables.learning,
        more="The set is described in [replay-set.md](replay-set.md); its times are of the machine that it names.",
    ),
    Section(
        file="template_trials",
        title="Points of templates, before a task's first trial",
        script="template_trials",
        table=gpu_tables.template_trials,
        more="Best of the first n points over the best of all measured ones; networks, and workloads of the extents of "
        "theirs, held out (ADR 0087).",
    ),
    Section(file="lookup", title="Look-ups", script="lookup", table=tables.lookup),
    Section(
        file="dashboard_load", title="Pages of the dashboard", script="dashboard_load", table=tables.dashboard_load
    ),
    Section(file="isolation", title="Hostile candidates", script="isolation", table=tables.isolation),
    Section(file="isolation_cuda", title="Hostile candidates on a GPU", script="isolation", table=tables.isolation),
    Section(file="false_wins", title="A program beside itself", script="false_wins", table=tables.false_wins),
    Section(file="false_wins_cuda", title="The same on a GPU", script="false_wins", table=tables.false_wins),
    Section(file="agreement", title="Served times measured again", script="agreement", table=tables.agreement),
    Section(file="coverage", title="Small architectures", script="coverage", table=verdicts.coverage),
    Section(
        file="coverage_zoo",
        title="Ten whole models by load",
        script="coverage",
        table=verdicts.coverage,
        more="Here with `--models`: those of `benchmarks/models.py`, in full size.",
    ),
    Section(file="onnx_nodes", title="Node tests of ONNX", script="onnx_nodes", table=verdicts.onnx_nodes),
    Section(
        file="torch_operators",
        title="Operators of torch, exported",
        script="torch_operators",
        table=verdicts.torch_operators,
    ),
    Section(
        file="torch_operators_compile",
        title="Operators of torch through torch.compile",
        script="torch_operators",
        table=verdicts.torch_operators,
        more="Here with `--compile`.",
    ),
    Section(
        file="other_frontends", title="JAX, flax and TFLite", script="other_frontends", table=verdicts.other_frontends
    ),
)


def results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Name of the file, without its suffix -> what it holds."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def lacking(result: dict[str, Any]) -> list[str]:
    """Which fields of RECORDED a result does not have."""
    found = result["environment"]
    return [name for name in RECORDED if found.get(name) in (None, "", "unknown")]


def page(found: dict[str, dict[str, Any]]) -> str:
    """The text of docs/performance.md. Raises KeyError for a file without a section, or a section without a file."""
    known = {section.file for section in SECTIONS}
    if strangers := known ^ set(found):
        raise KeyError(f"in SECTIONS or in results/, not in both: {', '.join(sorted(strangers))}")
    contents = [f"- [{section.title}](#{anchor(section.title)})" for section in SECTIONS]
    parts = [HEAD, "\n".join(contents), *("\n".join(part(section, found[section.file])) for section in SECTIONS)]
    return "\n\n".join(one.strip("\n") for one in parts) + "\n"


def anchor(title: str) -> str:
    """The name that a heading gets in a link."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def part(section: Section, result: dict[str, Any]) -> Iterator[str]:
    """The lines of one section."""
    script = ROOT / "benchmarks" / f"{section.script}.py"
    yield f"## {section.title}"
    yield ""
    yield f"{first_sentence(script)} {section.more}".strip()
    yield ""
    yield from told(section, result["environment"])
    yield ""
    yield from section.table(result)
    if result["summary"]:
        yield ""
        yield "Summary: " + "; ".join(flat(result["summary"])) + "."


def first_sentence(script: Path) -> str:
    """What a script says it compares: the first paragraph of its docstring."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def told(section: Section, environment: dict[str, Any]) -> Iterator[str]:
    """Where a result was made, and with what."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    version = environment.get("measure_version", NOT_RECORDED)
    yield f"- Script and file: `benchmarks/{section.script}.py`, [results](../benchmarks/results/{section.file}.json)"
    load = f"load {environment['load_before']:.1f} before"
    yield f"- Machine: {machine(environment)}; {environment['threads']} threads, {load}"
    yield f"- Versions: Python {environment['python']}, {versions}"
    yield f"- Date {environment['date']}; commit {environment.get('commit', NOT_RECORDED)}; measure version {version}"
    if environment["budget"]:
        yield f"- Budget: `{json.dumps(environment['budget'])}`"


def machine(environment: dict[str, Any]) -> str:
    """The processor, its caches, the system, and the GPU if one was measured."""
    caches = ", ".join(f"{name} {size >> 10} KiB" for name, size in environment["caches"].items())
    mcpu = f" ({environment['mcpu']})" if "mcpu" in environment else ""
    gpu = environment.get("gpu")
    also = f"; {gpu['model']}, driver {gpu['driver']}" if gpu else ""
    return f"{environment['device']}{mcpu}, {environment['cores']} cores, {caches}, {environment['kernel']}{also}"


def flat(value: Any, name: str = "") -> Iterator[str]:
    """`name value` of each leaf of a summary; names without a value are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name} {key}".strip())
    elif isinstance(value, list):
        yield f"{name}: {', '.join(number(each) for each in value) or 'none'}"
    else:
        yield f"{name} {number(value)}"


def with_figures(readme: str, found: dict[str, dict[str, Any]]) -> str:
    """README with its figures as the files have them."""
    return FIGURES.sub(lambda match: f"{match[1]}{match[2]}{readme_figures.PARTS[match[1]](found)}\n", readme)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="write nothing; fail where a page is not up to date")
    options = arguments.parse_args()
    found = results()
    wanted = {PAGE: page(found), README: with_figures(README.read_text(), found)}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path.relative_to(ROOT)} is not what {Path(__file__).name} writes")
        else:
            path.write_text(wanted[path])
    if options.check and stale:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
