"""Who answers: `kv`, `random`, `round_robin`, `direct`. Usage: chat.py [URL]"""

import sys

from kvmesh import Client

CONTEXT = "You are the support agent of a bakery. " * 40


def request(question: str) -> dict[str, object]:
    """Return a chat that begins like every other one here."""
    messages = [{"role": "system", "content": CONTEXT}, {"role": "user", "content": question}]
    return {"model": "mock", "max_tokens": 16, "messages": messages}


def main(url: str) -> None:
    """Send the same beginning in each router mode, then watch an answer come."""
    with Client(url) as client:
        first = client.kv(request("When do you open?"))
        again = client.kv(request("Do you have rye bread?"), bucket=first.bucket)
        print("kv           ", again.worker_id, again.overlap_blocks, "blocks cached")
        print("random       ", client.random(request("Do you deliver?")).worker_id)
        turns = [client.round_robin(request("Any jobs?")) for _ in range(2)]
        print("round_robin  ", *(turn.worker_id for turn in turns))
        direct = client.direct(request("Where are you?"), first.worker_id)
        print("direct       ", direct.worker_id)

        with client.stream(request("Tell me more.")) as stream:
            print("stream from  ", stream.head.worker_id, end=": ")
            for chunk in stream:
                print(chunk["choices"][0]["delta"].get("content", ""), end="")
            print()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
