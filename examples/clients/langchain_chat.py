"""LangChain in front of kvmesh: a conversation, and which worker held it.

    pip install langchain-openai
    python examples/clients/langchain_chat.py [URL]

Only `base_url` is kvmesh's. The session header is optional: without it a conversation is known by
how it begins.
"""

import sys

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

SYSTEM = "You are the support agent of a bakery. Answer briefly and politely. " * 30


def main(url: str) -> None:
    """Take three turns and print where each went."""
    model = ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="unused",
        model="mock",
        max_tokens=16,
        include_response_headers=True,
        default_headers={"x-kvmesh-session": "langchain-example"},
    )
    messages: list[BaseMessage] = [SystemMessage(SYSTEM)]
    for question in ("When do you open?", "Do you have rye bread?", "Do you deliver?"):
        messages.append(HumanMessage(question))
        answer = model.invoke(messages)
        messages.append(answer)
        headers = answer.response_metadata["headers"]
        print(headers["x-kvmesh-worker"], headers["x-kvmesh-overlap-blocks"], "blocks cached")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
