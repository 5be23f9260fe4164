"""The cost model: XGBoost on per-store features, one score per candidate, higher is better.

Notation. A candidate i has a feature matrix x_i of shape [k_i, 164], one row per store statement of its lowered
program. A boosted ensemble f scores rows; the candidate's score is the sum over its rows (the "pack-sum" of Ansor,
Zheng et al., OSDI 2020, section 5.2):

    s_i = sum_j f(x_ij),        y_i = sqrt((least seconds of i's workload) / (seconds of i)),   0 for a failure

so a target y is in [0, 1] and comparable between workloads. The square root spreads the targets: most schedules reach a
few percent of the best speed, and their plain relative speeds would hardly differ. The loss is squared error, weighted
towards fast candidates, because only the top of the ranking is measured next:

    L = sum_i w_i (s_i - y_i)^2 / 2,        w_i = (FLOOR + y_i^2) / sum of the same over i's workload

Every workload weighs the same however many samples it has. Row j of candidate i gets gradient w_i (s_i - y_i) and, as
an upper bound on the Hessian that keeps k_i simultaneous steps from overshooting, w_i k_i.

The model is advisory: where `load` refuses one, the search goes on without it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pitchpipe.errors import IntegrityError, InvalidInput
from tuner.search.requests import Sample, TrainedModel

__all__ = [
    "FEATURES",
    "CostModel",
    "fit",
    "held_out_metrics",
    "is_held_out",
    "pack_features",
    "target_of",
    "train",
    "unpack_features",
]

FEATURES = 164
"""Columns of TVM's per-store features."""
MAX_ROWS = 256
"""Store statements of one candidate, at most; MetaSchedule's have 1 to 20."""
MIN_SAMPLES = 16
"""A model of fewer samples is no better than random search."""
FLOOR = 0.2
"""Weight of a sample with y = 0, relative to 1.2 for the fastest."""
HELD_OUT = 0.2
"""Share of workloads that judges never see."""
MIN_TASK_SAMPLES = 8
"""Samples that a workload needs to be held out: the ranking of fewer says little about a model."""
ROUNDS = 150
PARAMETERS: dict[str, object] = {
    # One thread: on matrices this small a second one gains little, and waiting at its barriers makes training twenty
    # times slower while anything else runs on the machine, which a measurement always does.
    "tree_method": "hist",
    "max_depth": 5,
    "eta": 0.1,
    "min_child_weight": 0.5,
    "lambda": 1.0,
    "subsample": 0.9,
    "colsample_bytree": 0.7,
    "base_score": 0.0,
    "nthread": 1,
    "disable_default_eval_metric": 1,
    "verbosity": 0,
}
_MAGIC = b"PPCM\x01"
_MAX_MODEL_BYTES = 64 << 20


def target_of(best_secs: float, secs: float) -> float:
    """The target of a candidate with a time of `secs`: y of the notation above."""
    return float(np.sqrt(best_secs / secs))


def pack_features(features: NDArray[np.float32]) -> bytes:
    """A feature matrix as compressed half precision: rows (uint16), columns (uint16), values. Trees split on
    thresholds, so eleven significant bits are enough; a sample takes about 400 bytes."""
    rows, columns = features.shape
    values = np.clip(np.nan_to_num(features), -65504, 65504).astype("<f2")
    return zlib.compress(struct.pack("<HH", rows, columns) + values.tobytes(), 6)


def unpack_features(data: bytes) -> NDArray[np.float32]:
    """The inverse of `pack_features`, at half precision; raises InvalidInput on anything else."""
    try:
        decoder = zlib.decompressobj()
        raw = decoder.decompress(data, 4 + MAX_ROWS * FEATURES * 2)
        rows, columns = struct.unpack_from("<HH", raw)
        if columns != FEATURES or rows > MAX_ROWS or len(raw) != 4 + rows * columns * 2 or decoder.unconsumed_tail:
            raise InvalidInput(f"features of shape {rows} x {columns} in {len(raw)} bytes")
        values = np.frombuffer(raw, dtype="<f2", offset=4).reshape(rows, columns).astype(np.float32)
    except (zlib.error, struct.error) as error:
        raise InvalidInput(f"features cannot be unpacked: {error}") from error
    if not np.isfinite(values).all():
        raise InvalidInput("features that are not finite")
    return values


class CostModel:
    """A trained model. Threads may share it."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def load(cls, data: bytes) -> CostModel:
        """From the bytes of a TrainedModel; raises IntegrityError on damaged, truncated or malformed ones.

        The trees are checked here, node by node, because XGBoost does not check their indices.
        """
        return _load(data)

    def predict(self, features: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """One score per candidate, higher is better; shape [len(features)]."""
        if not features:
            return np.zeros(0)
        rows, owners = _stack(features)
        scores = self._booster.inplace_predict(rows, base_margin=None, predict_type="margin")
        return np.bincount(owners, weights=scores, minlength=len(features)).astype(np.float64)


def is_held_out(workload: str) -> bool:
    """Whether judges never see the workload, whenever and wherever they are trained: it follows from its digest alone, so
    any two versions are judged on the same workloads."""
    digest = hashlib.sha256(b"held out\0" + workload.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32


def train(samples: Sequence[Sample], seed: int) -> TrainedModel | None:
    """A model of all samples, with its metrics on held-out workloads; None when there are too few to learn from.

    Metrics (see `held_out_metrics`) come from its judge, a second model that never saw the held-out workloads; they are
    absent where none of these has enough samples. Deterministic for the samples' order and the seed.
    """
    usable = _Samples(samples)
    if not usable.are_enough:
        return None
    data = _fit(usable, np.ones(len(usable.targets), dtype=bool), seed)
    inside = np.array([not is_held_out(workload) for workload in usable.owners])
    judge = data if inside.all() else None
    if judge is None and usable.targets[inside].any():
        judge = _fit(usable, inside, seed)
    held_out = [w for w in usable.workloads if is_held_out(w) and usable.size_of(w) >= MIN_TASK_SAMPLES]
    metrics: dict[str, float] = {"held_out_tasks": float(len(held_out) if judge else 0)}
    if judge is not None:
        ranking = CostModel.load(judge)
        masks = (np.array([owner == workload for owner in usable.owners]) for workload in held_out)
        metrics |= held_out_metrics(
            [
                (usable.speeds[mask], ranking.predict([usable.features[i] for i in np.flatnonzero(mask)]))
                for mask in masks
            ]
        )
    return TrainedModel(data=data, judge=judge, metrics=metrics, samples=len(usable.targets))


def fit(samples: Sequence[Sample], seed: int) -> bytes | None:
    """A model of all samples as `CostModel.load` takes it, without a judge or metrics; None when there are too few.

    Deterministic as `train` is.
    """
    usable = _Samples(samples)
    if not usable.are_enough:
        return None
    return _fit(usable, np.ones(len(usable.targets), dtype=bool), seed)


def held_out_metrics(tasks: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> dict[str, float]:
    """Measures of ranking quality, averaged over tasks; each task is (speeds, predicted scores) of its candidates.

    pairwise: share of the pairs of different speed whose predicted order is right. peak@k: the mean over j <= k of
    (best speed of the j candidates with the highest scores) / (best speed).
    """
    pairwise, peaks = [], {1: list[float](), 5: list[float]()}
    for speed, predicted in tasks:
        if not speed.any():
            continue
        left, right = np.triu_indices(len(speed), 1)
        different = speed[left] != speed[right]
        if different.any():
            right_way = (speed[left] > speed[right]) == (predicted[left] > predicted[right])
            pairwise.append(float(right_way[different].mean()))
        best_so_far = np.maximum.accumulate(speed[np.argsort(-predicted, kind="stable")]) / speed.max()
        for k, values in peaks.items():
            values.append(float(best_so_far[:k].mean()))
    found = {"pairwise": pairwise, **{f"peak@{k}": values for k, values in peaks.items()}}
    return {name: float(np.mean(values)) for name, values in found.items() if values}


class _Samples:
    """The samples whose features unpack, with their relative speeds, targets and weights."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.features: list[NDArray[np.float32]] = []
        self.owners: list[str] = []
        seconds: list[float] = []
        for sample in samples:
            try:
                features = unpack_features(sample.features)
            except InvalidInput:
                continue
            if len(features):
                self.features.append(features)
                self.owners.append(sample.workload)
                seconds.append(sample.secs if sample.secs is not None else float("inf"))
        self.workloads = sorted(set(self.owners))
        index = np.array([self.workloads.index(owner) for owner in self.owners], dtype=np.int64)
        least = np.full(len(self.workloads), np.inf)
        np.minimum.at(least, index, np.array(seconds))
        with np.errstate(invalid="ignore"):
            self.speeds = np.nan_to_num(least[index] / np.array(seconds, dtype=np.float64), nan=0.0)
        self.targets = np.sqrt(self.speeds)
        weights = FLOOR + self.speeds
        self.weights = weights / (np.bincount(index, weights=weights) if len(index) else np.ones(1))[index]
        self._sizes = {workload: int((index == i).sum()) for i, workload in enumerate(self.workloads)}

    @property
    def are_enough(self) -> bool:
        """Whether a model can learn from them."""
        return len(self.targets) >= MIN_SAMPLES and bool(self.targets.any())

    def size_of(self, workload: str) -> int:
        return self._sizes[workload]


def _stack(features: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The rows of all candidates, and for each row the index of its candidate."""
    return np.concatenate(features), np.repeat(np.arange(len(features)), [len(x) for x in features])


def _fit(samples: _Samples, inside: NDArray[np.bool_], seed: int) -> bytes:
    """A model of these samples, sealed."""
    import xgboost

    chosen = np.flatnonzero(inside)
    rows, owners = _stack([samples.features[i] for i in chosen])
    y, weights = samples.targets[chosen], samples.weights[chosen]
    weights = weights / weights.mean()
    stores = np.bincount(owners).astype(np.float64)

    def objective(scores: NDArray[np.float32], _: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        error = np.bincount(owners, weights=scores) - y
        return (weights * error)[owners], (weights * stores)[owners]

    data = xgboost.DMatrix(rows, nthread=1)
    settings = {**PARAMETERS, "seed": seed}
    return _sealed(bytes(xgboost.train(settings, data, ROUNDS, obj=objective, verbose_eval=False).save_raw("json")))


def _sealed(document: bytes) -> bytes:
    """The stored form of a model: magic number, SHA-256, compressed JSON of XGBoost."""
    payload = zlib.compress(document, 6)
    return _MAGIC + hashlib.sha256(payload).digest() + payload


@lru_cache(maxsize=4)
def _load(data: bytes) -> CostModel:
    import xgboost

    head, payload = data[: len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if head[: len(_MAGIC)] != _MAGIC or hashlib.sha256(payload).digest() != head[len(_MAGIC) :]:
        raise IntegrityError("the cost model's bytes are damaged")
    try:
        decoder = zlib.decompressobj()
        text = decoder.decompress(payload, _MAX_MODEL_BYTES)
        _check_trees(json.loads(text))
        booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(text))
        if booster.num_features() != FEATURES:
            raise IntegrityError(f"the cost model expects {booster.num_features()} features, not {FEATURES}")
        booster.set_param({"nthread": 1})
        return CostModel(booster)
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, xgboost.core.XGBoostError) as error:
        raise IntegrityError(f"not a cost model: {str(error)[:200]}") from error


def _check_trees(document: dict[str, Any]) -> None:
    """Raises ValueError unless every tree refers to nodes of its own and to known features, without cycles."""
    booster = document["learner"]["gradient_booster"]
    if booster["name"] != "gbtree":
        raise ValueError("not a tree ensemble")
    for tree in booster["model"]["trees"]:
        left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
        splits, conditions = np.array(tree["split_indices"]), np.array(tree["split_conditions"], dtype=np.float64)
        nodes = int(tree["tree_param"]["num_nodes"])
        if tree["categories"] or tree["categories_nodes"] or np.any(np.array(tree["split_type"])):
            raise ValueError("categorical splits")
        if not len(left) == len(right) == len(splits) == len(conditions) == len(tree["default_left"]) == nodes > 0:
            raise ValueError("a tree whose parts differ in length")
        inner = left != -1
        children = np.concatenate([left[inner], right[inner]])
        if np.any(inner != (right != -1)) or (len(children) and (children.min() < 1 or children.max() >= nodes)):
            raise ValueError("a tree with a child out of range")
        if len(np.unique(children)) != len(children) or np.any(np.concatenate([np.flatnonzero(inner)] * 2) >= children):
            raise ValueError("a tree with a cycle")
        if splits.min() < 0 or splits.max() >= FEATURES or not np.isfinite(conditions).all():
            raise ValueError("a tree with a split out of range")
