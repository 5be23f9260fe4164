"""What `torch.compile(model, backend="pitchpipe", mode=..., options=...)` takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from pitchpipe.errors import InvalidInput
from pitchpipe.model.local import detect_target
from pitchpipe.wire.record import Tier
from pitchpipe.wire.target import Target

OnMiss = Literal["eager", "inductor", "default"]
MODES = ("default", "reduce-overhead", "max-autotune")
DEADLINE_SECS = 2.0
"""Longest that a process waits for look-ups and builds."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A value: equal options give equal graphs for equal programs."""

    url: str | None = None
    """Of the service; default PITCHPIPE_URL. Without one the local database is asked, if there is one."""
    target: Target | None = None
    """Default: the device on which a graph's tensors are."""
    min_tier: Tier = Tier.TRANSFERRED
    """A schedule that fits less well is not used."""
    on_miss: OnMiss = "eager"
    """What runs a partition none of whose schedules is there: eager, inductor, or (`default`) the baseline."""
    deadline_secs: float = DEADLINE_SECS
    """What a process waits for look-ups and builds in all, and what one call is delayed by trials of both sides at most,
    except in mode max-autotune. Until the compiled program is there and won, calls run as PyTorch runs them."""
    trials: int | None = None
    """Of the job that mode max-autotune submits; default: as many as fit its seconds."""
    tune: bool = False
    """Mode max-autotune: what is missing is tuned first."""
    cuda_graphs: bool = False
    """Mode reduce-overhead, on a GPU."""

    @property
    def patience_secs(self) -> float:
        """What a process waits for: who asks for tuning waits for all of it."""
        return float("inf") if self.tune else self.deadline_secs

    def accepts(self, tier: Tier) -> bool:
        """Whether a schedule of this tier is to be used."""
        return tier.fits(self.min_tier)


NAMES = ("mode", *(field.name for field in fields(Options) if field.name not in ("tune", "cuda_graphs")))
"""torch.compile takes a mode or options, not both: with options, the mode is one of them."""


def parse(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """Raises InvalidInput naming what is not known, and what is."""
    given = dict(options or {})
    if "deadline" in given:
        given["deadline_secs"] = given.pop("deadline")
    mode = mode or given.pop("mode", None) or "default"
    if mode not in MODES:
        raise InvalidInput(f"unknown mode {mode!r}: one of {', '.join(MODES)}")
    if unknown := sorted(set(given) - set(NAMES)):
        raise InvalidInput(f"unknown option {unknown[0]!r}: the options are {', '.join(NAMES)}")
    if given.get("on_miss", "eager") not in get_args(OnMiss):
        raise InvalidInput(f"on_miss is one of {', '.join(get_args(OnMiss))}, not {given['on_miss']!r}")
    if "min_tier" in given:
        tiers = [tier.value for tier in Tier if tier is not Tier.NONE]
        if given["min_tier"] not in tiers:
            raise InvalidInput(f"min_tier is one of {', '.join(tiers)}, not {given['min_tier']!r}")
        given["min_tier"] = Tier(given["min_tier"])
    if given.get("target") in (None, "auto"):
        given.pop("target", None)
    else:
        given["target"] = given["target"] if isinstance(given["target"], Target) else detect_target(given["target"])
    for name, least in (("deadline_secs", 0), ("trials", 1)):
        value = given.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
            raise InvalidInput(f"{name} is a number of at least {least}, not {value!r}")
    if not isinstance(given.get("url") or "", str):
        raise InvalidInput(f"url is a string, not {given['url']!r}")
    given["url"] = given.get("url") or os.environ.get("PITCHPIPE_URL") or None
    return Options(**given, tune=mode == "max-autotune", cuda_graphs=mode == "reduce-overhead")
