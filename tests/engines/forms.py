"""Every form of a request, as data: how a body of it is made, and what is promised of its reuse."""

import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kvmesh.core.chat.prompt_form import Unforeseen
from tests.unit.app.prompts.tokenizer_models import corpus

ANSWER_TOKENS: Final = 4
IMAGE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQ"
    "ABh6FO1AAAAABJRU5ErkJggg=="
)
TOOL: Final[dict[str, Any]] = {
    "name": "look_up",
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
}

Body = dict[str, Any]


class Material:
    """Texts and ids that share prefixes, drawn by `seed`: so often that caches are hit."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self.rng = random.Random(seed)
        texts = corpus()
        self._systems = [text[2000 : 2000 + 300 + 90 * n] for n, text in enumerate(texts[:4])]
        self._made: dict[str, list[Body]] = {}
        self._tails = [text[5000:] for text in texts]
        self._ids = [
            [self.rng.randrange(300, vocabulary - 50) for _ in range(400)] for _ in range(3)
        ]

    def again(self, name: str, make: Callable[["Material"], Body]) -> Body:
        """Return a body of this name: every third is one that was made before."""
        made = self._made.setdefault(name, [])
        if made and self.rng.random() < 1 / 3:
            return self.rng.choice(made)
        made.append(make(self))
        return made[-1]

    def system(self) -> str:
        """Return one of a few long texts."""
        return self.rng.choice(self._systems)

    def question(self) -> str:
        """Return a short text, seldom one that came before."""
        tail = self.rng.choice(self._tails)
        start = self.rng.randrange(max(1, len(tail) - 200))
        return tail[start : start + self.rng.randrange(20, 120)]

    def text(self) -> str:
        """Return a prompt in one text."""
        return f"{self.system()}\n{self.question()}"

    def ids(self) -> list[int]:
        """Return a prompt in token ids; often a longer one shares its beginning."""
        return self.rng.choice(self._ids)[: self.rng.randrange(40, 400)]

    def chat(self) -> list[Body]:
        """Return a conversation of one turn or two."""
        said = [{"role": "system", "content": self.system()}, _user(self.question())]
        if self.rng.random() < 0.5:
            said += [{"role": "assistant", "content": "Indeed so."}, _user(self.question())]
        return said


class Form(msgspec.Struct, frozen=True):
    """One form. What is reused of it is predicted exactly, or else `left_out` says why not.

    `engines` are the kinds that take it; `refused`: by answering 4xx.
    """

    name: str
    path: str
    make: Callable[[Material], Body]
    left_out: Unforeseen = ""
    engines: frozenset[str] = frozenset({"vllm", "sglang"})
    refused: bool = False

    def body(self, material: Material) -> Body:
        """Return a body, for the model `tiny`."""
        limit = "max_output_tokens" if self.path == RESPONSES else "max_tokens"
        common: Body = {"model": "tiny"}
        if self.path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
            common |= {limit: ANSWER_TOKENS, "temperature": 0.0}
        return common | material.again(self.name, self.make)


CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
EMBEDDINGS: Final = "/v1/embeddings"
_VLLM: Final = frozenset({"vllm"})


def _user(content: object) -> Body:
    return {"role": "user", "content": content}


def _chat(**more: object) -> Callable[[Material], Body]:
    return lambda one: {"messages": one.chat(), **more}


def _text(**more: object) -> Callable[[Material], Body]:
    return lambda one: {"prompt": one.text(), **more}


def _ids(**more: object) -> Callable[[Material], Body]:
    return lambda one: {"prompt": one.ids(), **more}


def _parts(one: Material) -> Body:
    texts = [{"type": "text", "text": one.system()}, {"type": "text", "text": one.question()}]
    return {"messages": [_user(texts)]}


def _image(one: Material) -> Body:
    image = {"type": "image_url", "image_url": {"url": IMAGE}}
    return {"messages": [_user([{"type": "text", "text": one.system()}, image])]}


def _tools(one: Material) -> Body:
    call = {"name": "look_up", "arguments": '{"word": "so"}'}
    said = [
        *one.chat(),
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": one.question()},
    ]
    return {"messages": said, "tools": [{"type": "function", "function": TOOL}]} | {
        "tool_choice": "none"
    }


def _continued(one: Material) -> Body:
    said = [*one.chat(), {"role": "assistant", "content": "The answer is"}]
    return {"messages": said, "continue_final_message": True, "add_generation_prompt": False}


def _anthropic(one: Material) -> Body:
    system: object = one.system()
    if one.rng.random() < 0.5:
        system = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    return {"system": system, "messages": [m for m in one.chat() if m["role"] != "system"]}


def _anthropic_tools(one: Material) -> Body:
    use = {"type": "tool_use", "id": "c", "name": "look_up", "input": {"word": "so"}}
    thought = {"type": "thinking", "thinking": "Let me see.", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "c", "content": one.question()}
    said = [
        _user([{"type": "text", "text": one.question()}]),
        {"role": "assistant", "content": [thought, {"type": "text", "text": "So."}, use]},
        _user([result, {"type": "text", "text": one.question()}]),
    ]
    tool = {key: TOOL[key] for key in ("name", "description")}
    tools = [{**tool, "input_schema": TOOL["parameters"]}]
    return {"system": one.system(), "messages": said, "tools": tools} | {
        "tool_choice": {"type": "none"}
    }


def _anthropic_reminder(one: Material) -> Body:
    late = {"role": "system", "content": one.question()}
    return {"system": one.system(), "messages": [_user(one.question()), late, _user("And now?")]}


def _items(one: Material) -> Body:
    text = [{"type": "output_text", "text": "Indeed so."}]
    said = [
        _user([{"type": "input_text", "text": one.question()}]),
        {"type": "message", "role": "assistant", "content": text},
        {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": '{"word": "so"}'},
        {"type": "function_call_output", "call_id": "c", "output": one.question()},
        _user(one.question()),
    ]
    tools = [{"type": "function", **TOOL}]
    return {"instructions": one.system(), "input": said, "tools": tools, "tool_choice": "none"}


FORMS: Final[tuple[Form, ...]] = (
    Form("chat", CHAT, _chat()),
    Form("chat, logprobs", CHAT, _chat(logprobs=True, top_logprobs=2)),
    Form("chat, content parts", CHAT, _parts),
    Form("chat, image", CHAT, _image, "media", _VLLM, refused=True),
    Form("chat, tools", CHAT, _tools),
    Form("chat, template kwargs", CHAT, _chat(chat_template_kwargs={"enable_thinking": False})),
    Form("chat, no generation prompt", CHAT, _chat(add_generation_prompt=False), engines=_VLLM),
    Form("chat, continued", CHAT, _continued),
    Form("chat, special tokens", CHAT, _chat(add_special_tokens=True), engines=_VLLM),
    Form("chat, own template", CHAT, _chat(chat_template="{{ 1 }}"), "template", _VLLM, True),
    Form("chat, n = 2", CHAT, _chat(n=2, temperature=1.0), "siblings"),
    Form("chat, n = 1 of a seed", CHAT, _chat(n=1, seed=3)),
    Form("chat, prompt_logprobs", CHAT, _chat(prompt_logprobs=1), engines=_VLLM),
    Form("chat, echo", CHAT, _chat(echo=True), engines=_VLLM),
    Form("chat, truncated", CHAT, _chat(truncate_prompt_tokens=120), engines=_VLLM),
    Form("chat, salted", CHAT, _chat(cache_salt="salt")),
    Form("text", COMPLETIONS, _text()),
    Form("text, logprobs", COMPLETIONS, _text(logprobs=1)),
    Form("text, echo", COMPLETIONS, _text(echo=True)),
    Form("text, echo of logprobs", COMPLETIONS, _text(echo=True, logprobs=1), engines=_VLLM),
    Form("text, prompt_logprobs", COMPLETIONS, _text(prompt_logprobs=1), engines=_VLLM),
    Form("text, no special tokens", COMPLETIONS, _text(add_special_tokens=False), engines=_VLLM),
    Form("text, truncated", COMPLETIONS, _text(truncate_prompt_tokens=130), engines=_VLLM),
    Form(
        "text, truncated right",
        COMPLETIONS,
        _text(truncate_prompt_tokens=130, truncation_side="right"),
        engines=_VLLM,
    ),
    Form("text, truncated to fit", COMPLETIONS, _text(truncate_prompt_tokens=-1), engines=_VLLM),
    Form("text, n = 3", COMPLETIONS, _text(n=3, temperature=1.0), "siblings"),
    Form("text, beam search", COMPLETIONS, _text(use_beam_search=True, n=2), "siblings", _VLLM),
    Form("ids", COMPLETIONS, _ids()),
    Form("ids, echo", COMPLETIONS, _ids(echo=True), engines=_VLLM),
    Form("ids, truncated", COMPLETIONS, _ids(truncate_prompt_tokens=100), engines=_VLLM),
    Form("list of one text", COMPLETIONS, lambda one: {"prompt": [one.text()]}),
    Form("list of texts", COMPLETIONS, lambda one: {"prompt": [one.text(), one.text()]}, "batch"),
    Form("list of ids", COMPLETIONS, lambda one: {"prompt": [one.ids(), one.ids()]}, "batch"),
    Form(
        "embeddings as prompt",
        COMPLETIONS,
        lambda _: {"prompt_embeds": "AAAA"},
        "embeds",
        _VLLM,
        True,
    ),
    Form("response, text", RESPONSES, lambda one: {"input": one.text()}, engines=_VLLM),
    Form("response, items", RESPONSES, _items, engines=_VLLM),
    Form(
        "response, instructions",
        RESPONSES,
        lambda one: {"instructions": one.system(), "input": one.question()},
        engines=_VLLM,
    ),
    Form(
        "response to one unknown",
        RESPONSES,
        lambda one: {"input": one.text(), "previous_response_id": "resp_0"},
        "stored",
        _VLLM,
        refused=True,
    ),
    Form("messages", MESSAGES, _anthropic, engines=_VLLM),
    Form("messages, tools", MESSAGES, _anthropic_tools, engines=_VLLM),
    Form("messages, late system", MESSAGES, _anthropic_reminder, engines=_VLLM),
)
