import asyncio

from kvmesh.ports import Journal


async def append_all(journal: Journal, prefix: str, payloads: list[bytes]) -> list[int]:
    acks: list[int] = []
    complete = asyncio.Event()

    def acked(sequence: int) -> None:
        acks.append(sequence)
        if len(acks) == len(payloads):
            complete.set()

    for payload in payloads:
        journal.append(f"{prefix}.ev.code.w1", payload, acked)
    async with asyncio.timeout(60):
        await complete.wait()
    return acks


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
