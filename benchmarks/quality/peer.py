"""Dynamo's own offline replay of its KV router: the same requests, engines and rate."""

import importlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.quality.grid import Setting, fleet_of, load

MODULE: Final = "dynamo._core"
ROUTERS: Final = ("kv_router", "round_robin")


class Replayed(msgspec.Struct, frozen=True, tag=True):
    """What Dynamo's replay reported."""

    setting: Setting
    router: str
    ttft_ms_p50: float
    ttft_ms_p90: float
    ttft_ms_p99: float
    hit_rate: float


def can_replay(setting: Setting) -> bool:
    """Return whether it may be asked: installed, one router, requests at times of their own."""
    if importlib.util.find_spec("dynamo") is None or setting.routers > 1:
        return False
    return not any(one.session for one in load(setting.trace, setting.requests).trace)


def replay(setting: Setting, saturation: float, router: str) -> Replayed:
    """Return what Dynamo's `router` ("kv_router", "round_robin") makes of the setting.

    One router replica; the mocker's default step times are those of our profile dynamo.
    """
    os.environ.setdefault("DYN_LOG", "error")
    core: Any = importlib.import_module(MODULE)
    sliced = load(setting.trace, setting.requests)
    engine = fleet_of(setting, sliced.block_size).engine
    speedup = setting.load * saturation
    routing: dict[str, Any] = {}
    if router == "kv_router":
        routing = {
            "router_config": core.KvRouterConfig(),
            "kv_event_lag_ms": setting.event_delay_ms,
        }
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / f"slice_b{sliced.block_size}.jsonl"
        lines = [
            msgspec.json.encode(
                {
                    "timestamp": one.timestamp_ms / speedup,
                    "input_length": one.input_tokens,
                    "output_length": one.output_tokens,
                    "hash_ids": one.block_ids,
                }
            )
            for one in sliced.trace
        ]
        file.write_bytes(b"\n".join(lines))
        result = core.run_mocker_trace_replay(
            [str(file)],
            extra_engine_args={
                "engine": {
                    "block_size": engine.block_size,
                    "num_gpu_blocks": engine.num_gpu_blocks,
                    "max_num_seqs": engine.max_num_seqs,
                    "max_num_batched_tokens": engine.max_num_batched_tokens,
                    "enable_prefix_caching": True,
                }
            },
            num_workers=setting.engines,
            router_mode=router,
            trace_block_size=sliced.block_size,
            **routing,
        )
    summary: Mapping[str, float] = result.summary
    return Replayed(
        setting=setting,
        router=router,
        ttft_ms_p50=summary["median_ttft_ms"],
        ttft_ms_p90=summary["p90_ttft_ms"],
        ttft_ms_p99=summary["p99_ttft_ms"],
        hit_rate=summary["prefix_cache_reused_ratio"],
    )
