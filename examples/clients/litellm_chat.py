"""LiteLLM as a library in front of kvmesh: two chats that begin alike, and a stream.

pip install litellm
python examples/clients/litellm_chat.py [URL]
"""

import sys

import litellm

SYSTEM = "You are the support agent of a bakery. Answer briefly and politely. " * 30


def main(url: str) -> None:
    """Send the chats and print where each went."""
    for question in ("When do you open?", "Do you have rye bread?"):
        answer = litellm.completion(
            model="openai/mock",
            api_base=f"{url}/v1",
            api_key="unused",
            max_tokens=16,
            messages=[
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question},
            ],
        )
        reported = answer._response_headers  # noqa: SLF001 - LiteLLM documents no other way
        print(reported["x-kvmesh-worker"], reported["x-kvmesh-overlap-blocks"], "blocks cached")
    stream = litellm.completion(
        model="openai/mock",
        api_base=f"{url}/v1",
        api_key="unused",
        max_tokens=16,
        stream=True,
        messages=[{"role": "user", "content": "Tell me more."}],
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    print("streamed", len(text), "characters")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
