"""Put an engine on the mesh from Python, as `kvmesh worker` does from a shell; Ctrl-C ends it.

Usage: register_engine.py [ENGINE_URL [NATS_URL [BUCKET]]]
"""

import asyncio
import contextlib
import sys

import kvmesh


async def main(engine_url: str, nats_url: str, bucket: str) -> None:
    """Publish what the engine caches, its load and its health, until it cannot go on."""
    async with kvmesh.register_llm(engine_url, nats_url, bucket) as llm:
        print("registered", *llm.worker_ids, "serving", *llm.models, flush=True)
        await llm.failed()


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            main(
                arguments.get(1, "http://127.0.0.1:8000"),
                arguments.get(2, ""),
                arguments.get(3, "default"),
            )
        )
