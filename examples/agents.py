"""Agents of one program: their turns say whose they are, so that their contexts stay cached.

Usage: agents.py [URL]. docs/workloads/programs.md has the headers of known clients, which need
none of this, and what routers do with it.
"""

import asyncio
import sys
from typing import Any

from kvmesh import AsyncClient

TOOLS = "You may read files, run tests and search the web. " * 60
STEPS = ("Look at the failing test.", "Read the function it calls.", "Fix it.")


async def run_agent(client: AsyncClient, program: str, parent: str) -> None:
    """Take an agent's turns; the last one says that no other follows, so its context may go."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": TOOLS}]
    for number, step in enumerate(STEPS):
        messages.append({"role": "user", "content": f"{program}: {step}"})
        body = {
            "model": "mock",
            "max_tokens": 8,
            "messages": messages,
            "kvmesh": {
                "program": program,
                "program_parent": parent,
                "program_final": number == len(STEPS) - 1,
            },
        }
        answer = await client.kv(body)
        print(f"{program:8} turn {number} {answer.worker_id} {answer.overlap_blocks} blocks cached")
        messages.append({"role": "assistant", "content": answer.text})


async def main(url: str) -> None:
    """Run a planner, then two agents that it starts."""
    async with AsyncClient(url) as client:
        await run_agent(client, "planner", "")
        await asyncio.gather(*(run_agent(client, name, "planner") for name in ("coder", "tester")))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
