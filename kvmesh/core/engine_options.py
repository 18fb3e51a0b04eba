"""The sizes and speed of one simulated engine."""

import msgspec

from kvmesh.core.engine_timing import PROFILES, TimingProfile
from kvmesh.errors import ConfigError


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
