"""Request bodies chosen by bytes: chats and prompts of clients, some of their values odd."""

from typing import Final

from tests.fuzz.stories.engine_batches import Chooser

FIELDS: Final = (
    *("model", "stream", "prompt", "input", "input_ids", "system", "instructions", "tools"),
    *("documents", "n", "best_of", "user", "max_tokens", "max_completion_tokens"),
    *("max_output_tokens", "priority", "cache_salt", "lora_path", "prompt_cache_key", "kvmesh"),
    *("prompt_cache_retention", "extra_key"),
    *("tool_choice", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt"),
    *("continue_final_message", "previous_response_id", "truncate_prompt_tokens", "messages"),
    *("prompt_logprobs", "use_beam_search", "a_field_that_nobody_has_ever_heard_of", "x", ""),
)
PLAIN: Final = ('"text"', '"caf\xe9 \u4e00 \U0001f600"', "null", "true", "false", "5", "0", "-1")
ODD: Final = (
    *('""', '"\\b\\f\\n\\r\\t\\/\\"\\\\ \\u0001 \\u00e9 \\ud83d\\ude00"', '"\\ud83d"', '"\\u00g0"'),
    *('"\\x"', '"\\u12', '"\\', '"\x01"', "1.5", "1e3", "-0", "007", "999999999", "1" * 20),
    *("[]", "{}", "[1,2,3]", '["a","b"]', "[[]]", "[{}]", "[{},1]", '[1,{"a":null}]', "nul", "]"),
    *(
        '{"a":"\\u0001\\n"}',
        '{"a":1,"a":2}',
        '{"\\u0061":1}',
        '{"a":1e999}',
        '{"a":[1,{"b":1.0e5}]}',
    ),
    *('[{"function":{"name":"f","arguments":"{}"}}]', '[{"type":"function","function":"f"}]'),
    *('[{"function":{"name":"f","x":{"a":[true,false,null,-5,"\\t"]}}}]', '[{"function":null}]'),
    *(
        "[" * 70,
        '{"a":' * 70 + "1" + "}" * 70,
        "{" + ",".join(f'"k{i}":1' for i in range(80)) + "}",
    ),
    '[{"function":{"name":"f","arguments":{"x":1e999,"x":2}}}]',
)
ROLES: Final = (
    *('"user"', '"system"', '"developer"', '"assistant"', '"tool"', '"other"', '"us\\u0065r"', "5"),
)
KINDS: Final = (
    *('"text"', '"input_text"', '"output_text"', '"refusal"', '"thinking"', '"image_url"', "7"),
    '"te\\u0078t"',
)
PARTS: Final = ("text", "refusal", "thinking", "x", "t\\u0065xt")
MESSAGE_FIELDS: Final = ("content", "name", "tool_calls", "tool_call_id", "x", "cont\\u0065nt")
BLANKS: Final = ("", "", "", " ", "\n\t\r ")


class Body:
    """Writes one body."""

    def __init__(self, data: bytes) -> None:
        self._chooser = Chooser(data)

    def build(self) -> bytes:
        """Return the body, which is mostly a JSON object."""
        members: list[tuple[str, str]] = []
        if self._chooser.below(4):
            members.append(("messages", self._messages()))
        while not self._chooser.is_empty and len(members) < 40:
            members.append((self._one(FIELDS), self._value()))
        body = self._blank() + self._object(members) + self._blank()
        if self._chooser.below(8) == 7:
            body = body[: -self._chooser.below(30) - 1]
        return body.encode()

    def _one(self, choices: tuple[str, ...]) -> str:
        return choices[self._chooser.below(len(choices))]

    def _is_odd(self) -> bool:
        return self._chooser.below(6) == 5

    def _blank(self) -> str:
        return self._one(BLANKS)

    def _value(self) -> str:
        return self._one(ODD if self._is_odd() else PLAIN)

    def _object(self, members: list[tuple[str, str]]) -> str:
        blank = self._blank()
        return "{" + ",".join(f'{blank}"{name}"{blank}:{value}' for name, value in members) + "}"

    def _list(self, items: list[str]) -> str:
        return "[" + (self._blank() + ",").join(items) + "]"

    def _messages(self) -> str:
        return self._list([self._message() for _ in range(1 + self._chooser.below(3))])

    def _message(self) -> str:
        members = [("role", self._one(ROLES))] if self._chooser.below(8) else []
        members.append(("content", self._content()))
        while self._chooser.below(2):
            members.append((self._one(MESSAGE_FIELDS), self._value()))
        return self._value() if self._chooser.below(40) == 39 else self._object(members)

    def _content(self) -> str:
        if self._chooser.below(2):
            return self._value()
        return self._list([self._part() for _ in range(self._chooser.below(4))])

    def _part(self) -> str:
        if self._chooser.below(3) == 0:
            return self._value()
        members = [("type", self._one(KINDS))] if self._chooser.below(6) else []
        while self._chooser.below(3):
            members.append((self._one(PARTS), self._value()))
        return self._object(members)


def build_body(data: bytes) -> bytes:
    """Return a body as `data` chooses it."""
    return Body(data).build()
