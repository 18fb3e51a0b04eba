"""What a client should have received of a mocker's stream, and what is wrong with what it did.

An answer of `kvmesh mocker` is a function of the request: the oracle makes it anew, whoever gave
the stream, one engine or several in turn.
"""

import json
from array import array
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from kvmesh.app.prompts.tokenizer import Tokenizer, load_tokenizer
from kvmesh_lab.mocker.generation import Choice, Engine, make_choices
from kvmesh_lab.mocker.model.answer import GeneratedAnswer, Vocabulary
from kvmesh_lab.mocker.model.request import Labels
from kvmesh_lab.mocker.vllm_requests import parse_chat, parse_completion

MAX_MODEL_LEN = 1 << 17

Fault = Literal["", "cut", "lost", "repeated", "changed", "errors", "no end"]


class Received(NamedTuple):
    """What came of one choice. `ids` and `prompt_ids` are None where none came."""

    text: str
    ids: list[int] | None
    prompt_ids: list[int] | None
    finish_reason: str | None
    errors: int
    done: bool


class Finding(NamedTuple):
    """What is wrong: with `length` tokens from token `at` on, counted from the answer's begin.

    "cut": it ends too early; "lost", "repeated": these tokens are missing, or came twice, and the
    rest is right; "changed": other tokens; "errors": an error event came; "no end": the tokens are
    right, but no finish reason or `[DONE]` came, or another reason. Where no ids came, characters
    are counted. "": nothing.
    """

    fault: Fault
    at: int = 0
    length: int = 0


def received(stream: bytes, index: int = 0) -> Received:
    """Return what the events of a stream, up to its last blank line, bring of a choice."""
    text, reason = "", None
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    errors, done = 0, False
    for event in stream.split(b"\n\n")[:-1]:
        if not event.startswith(b"data: "):
            continue
        if event == b"data: [DONE]":
            done = True
            continue
        said: dict[str, Any] = json.loads(event[6:])
        errors += "error" in said
        prompt_ids = said.get("prompt_token_ids") or prompt_ids
        for choice in said.get("choices", []):
            if choice["index"] != index:
                continue
            text += choice.get("delta", {}).get("content") or choice.get("text") or ""
            more = choice.get("token_ids")
            ids = ids if more is None else [*(ids or []), *more]
            prompt_ids = choice.get("prompt_token_ids") or prompt_ids
            reason = choice.get("finish_reason") or reason
    return Received(text, ids, prompt_ids, reason, errors, done)


class StreamOracle:
    """Judges streams of a mocker with this tokenizer, by default that of bytes."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = made = tokenizer or load_tokenizer(None)
        vocabulary = Vocabulary(
            lambda text: made.encode(text, add_special_tokens=False), made.decode
        )
        self._engine = Engine(16, MAX_MODEL_LEN, vocabulary)

    def judge(self, path: str, body: dict[str, Any], stream: bytes, index: int = 0) -> Finding:
        """Return what is wrong with a choice of the stream that answered a request for a base
        model.
        """
        choice, prompt = self._expected(path, body, index)
        came = received(stream, index)
        tokens = choice.ending.tokens
        text = choice.answer.text(0, tokens)[: choice.ending.characters]
        if came.errors:
            return Finding("errors", length=came.errors)
        finding = compare(text, came.text)
        if body.get("return_token_ids"):
            by_ids = compare(choice.answer.token_ids(0, tokens), came.ids or [])
            finding = by_ids if by_ids.fault or not finding.fault else finding
            if not finding.fault and came.prompt_ids != prompt:
                return Finding("changed")
        elif came.ids is not None or came.prompt_ids is not None:
            return Finding("changed")
        if not finding.fault and not (came.done and came.finish_reason == choice.ending.reason):
            return Finding("no end", tokens)
        return finding

    def expected(self, path: str, body: dict[str, Any], index: int = 0) -> GeneratedAnswer:
        """Return the answer to a request, however long."""
        return self._expected(path, body, index)[0].answer

    def _expected(self, path: str, body: dict[str, Any], index: int) -> tuple[Choice, list[int]]:
        content = json.dumps(body).encode()
        if path.endswith("chat/completions"):
            request = parse_chat(content)
            assert request.chat is not None
            prompts = [self._tokenizer.encode_chat(request.chat)]
        else:
            request = parse_completion(content)
            prompts = [
                self._tokenizer.encode(one, add_special_tokens=request.add_special_tokens)
                if isinstance(one, str)
                else array("I", one)
                for one in request.prompts
            ]
        labels = Labels(cache_salt=request.cache_salt)
        choices = make_choices(self._engine, request, prompts, labels, "oracle")
        return choices[index], prompts[index // request.choices].tolist()


def compare(expected: Sequence[object], came: Sequence[object]) -> Finding:
    """Return in what a sequence of tokens or characters differs from the expected one."""
    common = next(
        (at for at, pair in enumerate(zip(expected, came, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(came)),
    )
    if common == len(came):
        left = len(expected) - common
        return Finding("cut", common, left) if left else Finding("")
    more = len(came) - len(expected)
    if 0 < more <= common and expected[common - more :] == came[common:]:
        return Finding("repeated", common - more, more)
    if more < 0 and expected[common - more :] == came[common:]:
        return Finding("lost", common, -more)
    return Finding("changed", common, len(came) - common)
