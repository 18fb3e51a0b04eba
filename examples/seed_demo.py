"""What routing by cache does for three loads: one system prompt, one conversation, many topics.

Usage: seed_demo.py [URL]. `kvmesh demo` measures the same against round robin and random.
"""

import asyncio
import sys
from collections import Counter
from typing import Any

from kvmesh import AsyncClient

SYSTEM = "You are the support agent of a bakery. Answer briefly and politely. " * 30
QUESTIONS = ("When do you open?", "Do you have rye bread?", "Do you deliver?", "Any jobs?")
TOPICS = ("caches", "routers", "bread", "tides", "bridges", "ferns", "clocks", "maps")


def chat(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a request for a short answer."""
    return {"model": "mock", "max_tokens": 16, "messages": messages}


def said(role: str, text: str) -> dict[str, Any]:
    """Return one message."""
    return {"role": role, "content": text}


async def shared_prompt(client: AsyncClient) -> None:
    """Ask several questions behind one system prompt: after the first one it is cached."""
    print("shared system prompt: from the second question on its blocks are cached")
    for question in QUESTIONS:
        answer = await client.kv(chat([said("system", SYSTEM), said("user", question)]))
        print(f"  {answer.worker_id:9} {answer.overlap_blocks:4} blocks cached  {question}")


async def conversation(client: AsyncClient) -> None:
    """Hold one conversation: each turn goes where the turns before it are cached."""
    print("multi-turn: a conversation goes back to the worker that holds it")
    messages = [said("user", "My name is Alice. I am a software engineer. " * 12)]
    for turn in ("What is my name?", "What did I tell you about my profession?", "Thank you."):
        answer = await client.kv(chat(messages))
        print(f"  {answer.worker_id:9} {answer.overlap_blocks:4} blocks cached")
        messages += [said("assistant", answer.text), said("user", turn)]


async def spread(client: AsyncClient) -> None:
    """Ask about topics that share nothing, all at once: every worker gets some."""
    print("load spread: prompts that share nothing go to all workers")
    asked = [chat([said("user", f"Tell me about {topic}. " * 40)]) for topic in TOPICS]
    answers = await asyncio.gather(*(client.kv(one) for one in asked))
    for worker, requests in sorted(Counter(one.worker_id for one in answers).items()):
        print(f"  {worker:9} {requests} requests")


async def main(url: str) -> None:
    """Show all three, one after the other."""
    async with AsyncClient(url) as client:
        await shared_prompt(client)
        await conversation(client)
        await spread(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
