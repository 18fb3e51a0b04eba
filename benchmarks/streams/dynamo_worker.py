"""A worker of Dynamo whose answer is a function of its prompt: run by the Python that has Dynamo.

`python dynamo_worker.py MODEL_FOLDER` serves the model `m`; a token each `INTERVAL_S`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

INTERVAL_S = 0.01
FIRST_ID, IDS = 300, 1500
"""Ids of words; those before are bytes and signs."""


def next_id(state: int, token: int) -> int:
    """Return the state behind one more token: FNV-1a."""
    return (state ^ token) * 0x100000001B3 % (1 << 64)


async def generate(request: dict[str, Any], context: Any = None) -> AsyncIterator[dict[str, Any]]:
    """Answer prompt, and answer so far if another worker has begun it."""
    del context
    state = 0xCBF29CE484222325
    for token in request["token_ids"]:
        state = next_id(state, token)
    left = request["stop_conditions"].get("max_tokens") or 16
    for number in range(left):
        await asyncio.sleep(INTERVAL_S)
        token = FIRST_ID + (state >> 20) % IDS
        state = next_id(state, token)
        yield {"token_ids": [token]} | ({"finish_reason": "length"} if number == left - 1 else {})


async def main() -> None:
    runtime, llm = import_module("dynamo.runtime"), import_module("dynamo.llm")
    loop = asyncio.get_running_loop()
    found = runtime.DistributedRuntime(loop, "file", "tcp")
    endpoint = found.endpoint("kvmesh.backend.generate")
    await llm.register_model(
        *(llm.ModelInput.Tokens, llm.ModelType.Chat, endpoint, sys.argv[1], "m"),
        worker_type=llm.WorkerType.Aggregated,
    )
    await endpoint.serve_endpoint(generate)


if __name__ == "__main__":
    asyncio.run(main())
