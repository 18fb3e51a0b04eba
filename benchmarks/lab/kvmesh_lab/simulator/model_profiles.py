"""What engines of known models and GPUs hold and take: cache sizes with their arithmetic."""

from collections.abc import Mapping
from typing import Final

import msgspec

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.timing import DYNAMO_CAPACITY_TOKENS, FILE, read_profile

H100_BYTES: Final = 81_559 * 2**20
"""Memory of an H100 with 80 GB as nvidia-smi shows it: 81,559 MiB."""

MEMORY_SHARE: Final = 0.9
"""vLLM's default of `--gpu-memory-utilization`."""

RESERVED_BYTES: Final = 3_000_000_000
"""Taken of each GPU for activations and CUDA graphs. Assumed: vLLM measures it at start."""


class ModelProfile(msgspec.Struct, frozen=True):
    """A model on GPUs. KV bytes are of one token, weights of the whole model; `timing` is the name
    of a timing profile.
    """

    gpus: int
    gpu_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    timing: str

    def kv_tokens(self) -> int:
        """Return how many tokens its KV cache holds, as vLLM computes it."""
        usable = self.gpus * (int(self.gpu_bytes * MEMORY_SHARE) - RESERVED_BYTES)
        return (usable - self.weight_bytes) // self.kv_bytes_per_token


MODEL_PROFILES: Final[Mapping[str, ModelProfile]] = {
    "8b-1xh100": ModelProfile(
        gpus=1,
        gpu_bytes=H100_BYTES,
        weight_bytes=2 * 8_030_000_000,
        kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
        timing="dynamo",
    ),
    "70b-2xh100": ModelProfile(
        gpus=2,
        gpu_bytes=H100_BYTES,
        weight_bytes=70_600_000_000,
        kv_bytes_per_token=2 * 80 * 8 * 128 * 2,
        timing="preble-70b",
    ),
    "70b-4xh100": ModelProfile(
        gpus=4,
        gpu_bytes=H100_BYTES,
        weight_bytes=2 * 70_600_000_000,
        kv_bytes_per_token=2 * 80 * 8 * 128 * 2,
        timing="preble-70b",
    ),
}
"""Llama 3.1 8B in BF16 on one H100; 70B in FP8 on two and in BF16 on four; KV caches in BF16.

KV bytes of a token are 2 (K, V) x layers x KV heads x head size x 2 bytes. Source: the models'
config.json. No fit of the steps of an 8B on this GPU is known, so Dynamo's polynomials are taken;
Preble's fit is of two H100, so that four are quicker than this.
"""

DYNAMO: Final = "dynamo-mocker"
"""What Dynamo's mocker pretends: 1,048,576 tokens, which no 80 GB GPU with such a model holds."""

_BY_TIMING: Final[Mapping[str, str]] = {"preble-70b": "70b-2xh100"}


class EngineSize(msgspec.Struct, frozen=True):
    """What of an engine follows from its profile."""

    name: str
    tokens: int
    kv_bytes_per_token: int
    timing: str


def engine_size(profile: str | None, timing: str | None) -> EngineSize:
    """Return the size of an engine by profile, or by the timing profile if that alone is named.

    A profile may be a file, FILE.json. Raises `ConfigError` naming the profiles.
    """
    base = (timing or "").partition(",")[0].strip()
    name = profile or _BY_TIMING.get(base, "8b-1xh100")
    if name == DYNAMO:
        return EngineSize(name, DYNAMO_CAPACITY_TOKENS, 131_072, timing or "dynamo")
    if name.endswith(FILE):
        own = read_profile(name)
        return EngineSize(name, own.kv_tokens, own.kv_bytes_per_token, timing or name)
    found = MODEL_PROFILES.get(name)
    if found is None:
        known = ", ".join((*MODEL_PROFILES, DYNAMO))
        raise ConfigError(f"--model-profile {name!r} is none of {known}, nor a file, FILE.json")
    return EngineSize(name, found.kv_tokens(), found.kv_bytes_per_token, timing or found.timing)
