"""What a stream of server-sent events says, read the plain way: as one whole text."""

import json

import msgspec

from kvmesh.core.chat.answer_json import Stop
from kvmesh.core.engines.sse import Usage

STOPS: dict[object, Stop] = {"stop": "end", "tool_calls": "tool", "length": "length"}


class NaiveReading:
    """The facts `EventStream` must find, from the text at once."""

    def __init__(self, text: bytes) -> None:
        self.tokens = 0
        self.done = False
        self.errors = 0
        self.usage: Usage | None = None
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        name, values = b"", list[bytes]()
        for line in lines[:-1]:
            if line == b"":
                if values and b"\n".join(values):
                    self._event(name, b"\n".join(values))
                name, values = b"", []
            elif line.startswith(b"data:"):
                values.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                name = line[6:].strip()

    def _event(self, name: bytes, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            decoded = json.loads(data)
        except ValueError:
            decoded = None
        content = decoded if isinstance(decoded, dict) else {}
        if name == b"error" or content.get("error") or content.get("object") == "error":
            self.errors += 1
            return
        if not name or name.endswith(b"delta"):
            self.tokens += 1
        self._end(content)
        reported = content.get("usage")
        if isinstance(reported, dict):
            before = self.usage or Usage()
            cached = (reported.get("prompt_tokens_details") or {}).get("cached_tokens")
            prompt = max(before.prompt_tokens, reported["prompt_tokens"])
            cached = before.cached_tokens if cached is None else cached
            if cached is not None and prompt:
                cached = min(cached, prompt)
            self.usage = Usage(
                prompt,
                max(before.completion_tokens, reported["completion_tokens"]),
                cached,
                stop=before.stop,
                tool=before.tool,
            )

    def _end(self, content: dict[str, object]) -> None:
        """Note what a chat's event says of the end of its answer."""
        before = self.usage or Usage()
        stop, tool = before.stop, before.tool
        choices = content.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            word = choice.get("finish_reason")
            stop = STOPS.get(word, stop)
            for call in choice["delta"].get("tool_calls", []):
                tool = call["function"].get("name", tool)
        if stop == "end" and tool:
            stop = "tool"
        if (stop, tool) != (before.stop, before.tool):
            self.usage = msgspec.structs.replace(before, stop=stop, tool=tool)
