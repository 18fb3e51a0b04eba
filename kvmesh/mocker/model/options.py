"""The sizes and speed of one simulated engine."""

import msgspec

from kvmesh.errors import ConfigError
from kvmesh.mocker.model.timing import PROFILES, StepLoad, TimingProfile


class EngineOptions(msgspec.Struct, frozen=True):
    """One engine. The names are vLLM's; `speedup_ratio` divides every step's duration.

    Raises `ConfigError` where vLLM would not start either.
    """

    block_size: int = 16
    num_gpu_blocks: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    enable_prefix_caching: bool = True
    timing: TimingProfile = PROFILES["dynamo"]
    speedup_ratio: float = 1.0

    def __post_init__(self) -> None:
        """Check the options together."""
        for name in ("block_size", "max_num_seqs", "speedup_ratio"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each running request needs one a step"
            )

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
