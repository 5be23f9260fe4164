"""The sections of docs/performance.md: a result file each, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gpu_tables
import job_tables
import operator_tables
import result_tables as tables
import verdict_tables as verdicts


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
        file="latency_others_avx512",
        title="Twelve of these models after a minute, with AVX-512",
        script="latency",
        table=tables.latency,
        more="Nine that had not been measured on a CPU, and three with grouped convolutions or squeeze and excitation, at "
        "the commits that the rows name. Mixtral has no peer beside eager. The recommendation (dlrm) is of 4a34861, with "
        "concatenations copied piece by piece; at 5874156, before that, it was 0.73 of ONNX Runtime.",
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
        "those of a26e0ce of scaled channels in a kernel of their own (ADR 0107), those of dd129c3 of regions that lie as "
        "what is around them (ADR 0123, 0124). "
        "The others are of before, so that models with attention may be faster now than they say.",
    ),
    Section(
        file="latency_cuda_h200_untuned",
        title="Models that nobody tuned, on an H200",
        script="latency_cuda",
        table=gpu_tables.latency_cuda,
        more="`--seconds 0 --jobs 5` and 8: what `pitchpipe.load` gives from an empty cache, with a template where one was "
        "checked and found faster on the GPU (ADR 0125). The last five are of `benchmarks/wide.py`, two layers each.",
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
        file="torch_backend_irregular",
        title="torch.compile of models that recur, scatter and choose",
        script="torch_backend",
        table=tables.torch_backend,
        more="Those of `benchmarks/irregular.py`, each tuned for 30 s.",
    ),
    Section(
        file="operator_latency",
        title="PyTorch's operators, untuned",
        script="operator_latency",
        table=operator_tables.operator_latency,
    ),
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
    Section(
        file="side_by_side",
        title="Processes side by side",
        script="side_by_side",
        table=operator_tables.side_by_side,
        more="On 32 cores, with schedules that nobody tuned.",
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
    Section(
        file="false_wins",
        title="A program beside itself",
        script="false_wins",
        table=tables.false_wins,
        more="Fifteen workers on pairs of cores of one machine, all timing at once: a busy machine. Before, where ten timed"
        " in turn, 0 of 3,468 were false wins (below 0.086 %); where ten timed at once while TVM bound the threads of all to"
        " the same cores ([0110](decisions/0110-threads-keep-to-the-cores-of-their-process.md)), so that programs took 8 to"
        " 21 times as long, 4 of 6,652 (below 0.138 %).",
    ),
    Section(
        file="false_wins_cuda",
        title="The same on a GPU",
        script="false_wins",
        table=tables.false_wins,
        more="Two workers, each with a GPU, beside ten that compared on CPUs.",
    ),
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
