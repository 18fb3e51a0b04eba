"""The weights of the published formulas, a Struct each, named as the field names them."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MOST: Final = 1e6
"""The most that a factor may be."""


class PrefillDecodeWeights(msgspec.Struct, frozen=True):
    """Weights of `prefill-decode`."""

    overlap_score_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="what a block to prefill counts for, in active ones")
    ] = 1.0


class PredictedTimeWeights(msgspec.Struct, frozen=True):
    """Weights of `predicted-time`."""

    overlap_score_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="k: what the own prefill counts for")
    ] = 1.0
    contention: Annotated[
        float,
        Meta(ge=0, le=MOST, description="g: what each request there adds to a prefill's cost"),
    ] = 0.4
    followers: Annotated[
        float,
        Meta(ge=0, le=MOST, description="f: what each request adds that comes until it is done"),
    ] = 0.5
    decode_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="d: an outstanding prompt token, in prefilled ones")
    ] = 0.05
    doubt: Annotated[
        float,
        Meta(ge=0, le=MOST, description="e: a cached token expected to be evicted, in own ones"),
    ] = 0.25


class DynamoWeights(msgspec.Struct, frozen=True):
    """Weights of `dynamo`."""

    overlap_score_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="what a block to prefill counts for, in active ones")
    ] = 1.0
    overlap_score_credit: Annotated[
        float, Meta(ge=0, le=MOST, description="blocks of prefill that a cached block saves")
    ] = 1.0
    overlap_score_credit_decay: Annotated[
        float, Meta(ge=0, le=MOST, description="how fast that fades with backlog beyond the least")
    ] = 0.0
    decode_active_request_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="blocks that an active request counts for")
    ] = 0.0


class PrebleWeights(msgspec.Struct, frozen=True):
    """Weights of `preble`."""

    outstanding_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="an outstanding prompt token, in prefilled ones")
    ] = 0.05


class SglangWeights(msgspec.Struct, frozen=True):
    """Weights of `sglang`, named as SGLang's router names them."""

    cache_threshold: Annotated[
        float, Meta(ge=0, le=1, description="share of the prompt that a match must be to count")
    ] = 0.3
    balance_abs_threshold: Annotated[
        int, Meta(ge=0, le=1_000_000, description="requests more than the least: unbalanced")
    ] = 64
    balance_rel_threshold: Annotated[
        float, Meta(ge=0, le=MOST, description="times the least requests: unbalanced")
    ] = 1.5


class OverlapUsageWaitingWeights(msgspec.Struct, frozen=True):
    """Weights of `overlap-usage-waiting`."""

    overlap_score_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="what the cached share of the prompt counts for")
    ] = 2.0
    gpu_cache_usage_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="what the used share of the KV cache counts for")
    ] = 1.0
    waiting_requests_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="what waiting requests count for, 1 where most wait")
    ] = 1.0


class OverlapLoadWeights(msgspec.Struct, frozen=True):
    """Weights of `overlap-load`."""

    weight_cache: Annotated[
        float, Meta(ge=0, le=MOST, description="what the cached share of the prompt counts for")
    ] = 1.0
    weight_load: Annotated[
        float, Meta(ge=0, le=MOST, description="what the used share of the KV cache counts for")
    ] = 1.0


class OverlapBlocksWeights(msgspec.Struct, frozen=True):
    """Weights of `overlap-blocks`."""

    overlap_score_weight: Annotated[
        float, Meta(ge=0, le=MOST, description="what a cached block counts for")
    ] = 1.0
    weight_load: Annotated[
        float, Meta(ge=0, le=MOST, description="blocks that a full KV cache counts for")
    ] = 1.0
