"""The sizes and speed of one simulated engine."""

from typing import Final

import msgspec

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.lower_tiers import TierOptions
from kvmesh_lab.mocker.model.timing import PROFILES, StepLoad, TimingProfile

MAX_GROUPS: Final = 64


class EngineOptions(msgspec.Struct, frozen=True):
    """One engine. The names are vLLM's; `speedup_ratio` divides every step's duration. `tiers` are
    memory below the device's, nearest first.

    Beside its group of full attention a hybrid model has `window_groups` of `sliding_window` tokens
    (0: none) and `mamba_groups`. All take blocks of the one pool. It holds `max_loras` adapters
    ready (0: all), loading another takes `lora_load_ms`.

    Raises `ConfigError` where vLLM would not start either.
    """

    block_size: int = 16
    num_gpu_blocks: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    enable_prefix_caching: bool = True
    sliding_window: int = 0
    window_groups: int = 1
    mamba_groups: int = 0
    timing: TimingProfile = PROFILES["dynamo"]
    speedup_ratio: float = 1.0
    tiers: tuple[TierOptions, ...] = ()
    max_loras: int = 0
    lora_load_ms: float = 0.0

    def __post_init__(self) -> None:
        """Check the options together."""
        for name in ("block_size", "max_num_seqs", "speedup_ratio"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.sliding_window < 0 or self.sliding_window == 1:
            raise ConfigError(f"sliding_window is {self.sliding_window}: 0 for none, or at least 2")
        for name, least in (("window_groups", 1), ("mamba_groups", 0)):
            if not least <= getattr(self, name) <= MAX_GROUPS:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}: it must be {least} to {MAX_GROUPS}"
                )
        for name in ("max_loras", "lora_load_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0 or more")
        if self.groups and self.tiers:
            raise ConfigError(
                f"sliding_window {self.sliding_window}, mamba_groups {self.mamba_groups} and "
                f"{len(self.tiers)} slower tiers: hybrid engines have no slower tiers here"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each running request needs one a step"
            )

    @property
    def groups(self) -> tuple[int, ...]:
        """Return the windows of the groups beside full attention, tokens; 0 for mamba."""
        windows = (self.sliding_window,) * self.window_groups if self.sliding_window else ()
        return windows + (0,) * self.mamba_groups

    def step_s(self, load: StepLoad) -> float:
        """Return how long a step of this engine takes, s."""
        return self.timing.step_ms(load) / 1000.0 / self.speedup_ratio

    def decode_s(self, load: StepLoad, steps: int) -> list[float]:
        """Return how long so many steps in a row take that only decode, each request one token
        longer every time; the first is `load`.
        """
        if not self.timing.decode_per_context:
            return [self.step_s(load)] * steps
        begin, more = load.context_tokens, load.decoding
        return [
            self.step_s(msgspec.structs.replace(load, context_tokens=begin + step * more))
            for step in range(steps)
        ]
