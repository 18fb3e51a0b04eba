"""How long one step of an engine takes, as a function of what is in its batch."""

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from kvmesh.errors import ConfigError

DYNAMO_CAPACITY_TOKENS: Final = 1_048_576
"""KV tokens that Dynamo's decode polynomial takes as 100 %."""


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
    `mixed_saving`: the weights are read once.
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

    def step_ms(self, load: StepLoad) -> float:
        """Return the step's duration, ms, never negative."""
        duration = 0.0
        tokens = load.prefill_tokens
        if tokens:
            duration = (
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
    """Return the profile `text` names: `NAME` or `NAME,coefficient=ms,…`.

    E.g. `linear,prefill_per_token=0.02,decode_base=8`. Raises `ConfigError` naming what exists.
    """
    name, *changes = (part.strip() for part in text.split(","))
    profile = PROFILES.get(name)
    if profile is None:
        raise ConfigError(f"timing profile {name!r} is none of {', '.join(sorted(PROFILES))}")
    values = {key.strip(): value for key, _, value in (part.partition("=") for part in changes)}
    unknown = set(values) - set(TimingProfile.__struct_fields__)
    if unknown:
        known = ", ".join(TimingProfile.__struct_fields__)
        raise ConfigError(f"timing profile {text!r}: {sorted(unknown)} is none of {known}")
    try:
        numbers = {key: float(value) for key, value in values.items()}
    except ValueError as error:
        raise ConfigError(f"timing profile {text!r}: {error}") from error
    changed = msgspec.structs.replace(profile, **numbers)
    if changed.active_capacity <= 0 or not all(map(math.isfinite, numbers.values())):
        raise ConfigError(f"timing profile {text!r}: finite numbers, active_capacity above 0")
    return changed
