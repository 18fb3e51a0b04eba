"""How long one step of an engine takes, as a function of what is in its batch."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError

DYNAMO_CAPACITY_TOKENS: Final = 1_048_576
"""KV tokens that Dynamo's decode polynomial takes as 100 %."""

FILE: Final = ".json"
"""How the name of a profile's file ends."""


class StepLoad(msgspec.Struct, frozen=True):
    """What one step computes.

    `prefill_attention` is the sum over prefill chunks of new tokens times the tokens each attends
    to on average; `context_tokens` the sum of the decoding requests' lengths; `active_tokens` the
    KV tokens in blocks held by requests, shared ones once.
    """

    prefill_tokens: int
    prefill_attention: float
    decoding: int
    context_tokens: int
    active_tokens: int


class TimingProfile(msgspec.Struct, frozen=True):
    """Coefficients of a step's duration, in ms.

    prefill = base + per_token·n + per_square·n² + per_attention·n·context
    decode  = base + per_request·batch + per_context·context + per_active·f + per_active_square·f²
    with f = active_tokens / active_capacity, at most 1. A step with both costs their sum less
    `mixed_saving`: the weights are read once. `steps`, as measured of an engine, are added: pairs
    of the tokens that a step computes, prefilled and decoded ones, and its ms; straight lines lie
    between them, and the last one goes on.
    """

    prefill_base: float = 0.0
    prefill_per_token: float = 0.0
    prefill_per_square: float = 0.0
    prefill_per_attention: float = 0.0
    decode_base: float = 0.0
    decode_per_request: float = 0.0
    decode_per_context: float = 0.0
    decode_per_active: float = 0.0
    decode_per_active_square: float = 0.0
    active_capacity: float = DYNAMO_CAPACITY_TOKENS
    mixed_saving: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()

    def step_ms(self, load: StepLoad) -> float:
        """Return the step's duration, ms, never negative."""
        tokens = load.prefill_tokens
        duration = self._measured_ms(tokens + load.decoding) if self.steps else 0.0
        if tokens:
            duration += (
                self.prefill_base
                + self.prefill_per_token * tokens
                + self.prefill_per_square * tokens * tokens
                + self.prefill_per_attention * load.prefill_attention
            )
            if load.decoding:
                duration -= self.mixed_saving
        if load.decoding:
            used = min(1.0, load.active_tokens / self.active_capacity)
            duration += (
                self.decode_base
                + self.decode_per_request * load.decoding
                + self.decode_per_context * load.context_tokens
                + (self.decode_per_active + self.decode_per_active_square * used) * used
            )
        return max(0.0, duration)

    def _measured_ms(self, tokens: float) -> float:
        if not tokens:
            return 0.0
        at = min(max(1, bisect_left(self.steps, (tokens,))), len(self.steps) - 1)
        (low, low_ms), (high, high_ms) = self.steps[at - 1 : at + 1]
        return low_ms + (tokens - low) * (high_ms - low_ms) / (high - low)


PROFILES: Final[Mapping[str, TimingProfile]] = {
    "dynamo": TimingProfile(
        prefill_base=16.50142,
        prefill_per_token=0.01518344,
        prefill_per_square=4.209989e-7,
        decode_base=5.74,
        decode_per_active=54.01,
        decode_per_active_square=-25.74,
    ),
    "preble-70b": TimingProfile(
        prefill_base=18.7,
        prefill_per_token=0.0799,
        prefill_per_attention=7.4e-7,
        decode_base=19.0,
        decode_per_request=0.08,
        decode_per_context=6e-5,
        mixed_saving=18.7,
    ),
    "linear": TimingProfile(prefill_base=5.0, prefill_per_token=0.05, decode_base=10.0),
    "instant": TimingProfile(),
}
"""Named profiles. dynamo: the polynomials of Dynamo's mocker, prefill and decode one after the
other as there. preble-70b: the Preble paper's fit of a 70B model on two H100. linear: easy to
compute with. instant: no time at all."""


def parse_profile(text: str) -> TimingProfile:
    """Return the profile `text` names: `NAME` or `NAME,coefficient=ms,…`; NAME may be a file,
    FILE.json (`ProfileFile`).

    E.g. `linear,prefill_per_token=0.02,decode_base=8`. Raises `ConfigError` naming what exists.
    """
    name, *changes = (part.strip() for part in text.split(","))
    profile = read_profile(name).timing if name.endswith(FILE) else PROFILES.get(name)
    if profile is None:
        raise ConfigError(f"timing profile {name!r} is none of {', '.join(sorted(PROFILES))}")
    values = {key.strip(): value for key, _, value in (part.partition("=") for part in changes)}
    coefficients = [one for one in TimingProfile.__struct_fields__ if one != "steps"]
    unknown = set(values) - set(coefficients)
    if unknown:
        known = ", ".join(coefficients)
        raise ConfigError(f"timing profile {text!r}: {sorted(unknown)} is none of {known}")
    try:
        numbers = {key: float(value) for key, value in values.items()}
    except ValueError as error:
        raise ConfigError(f"timing profile {text!r}: {error}") from error
    changed = msgspec.structs.replace(profile, **numbers)
    if changed.active_capacity <= 0 or not all(map(math.isfinite, numbers.values())):
        raise ConfigError(f"timing profile {text!r}: finite numbers, active_capacity above 0")
    return changed


class ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured engine: where its figures are from, how many tokens its KV cache holds, their
    bytes, and how long its steps take.
    """

    source: str
    kv_tokens: int
    kv_bytes_per_token: int
    timing: TimingProfile


def read_profile(path: str) -> ProfileFile:
    """Return the profile that a file has. Raises `ConfigError` for one that cannot be."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=ProfileFile)
    except OSError as error:
        raise ConfigError(f"profile {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigError(f"profile {path}: {error}") from error
    steps = found.timing.steps
    if len(steps) == 1 or any(low >= high for (low, _), (high, _) in pairwise(steps)):
        raise ConfigError(f"profile {path}: give steps of two or more tokens that rise")
    if found.kv_tokens <= 0 or found.kv_bytes_per_token <= 0:
        raise ConfigError(f"profile {path}: kv_tokens and kv_bytes_per_token must be above 0")
    return found
