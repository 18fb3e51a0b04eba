"""One generation request under way at the pretend vLLM, from its prompts to its last byte."""

from array import array
from collections.abc import Callable, Sequence

from kvmesh.core.blocks.hashing import namespace_root, sequence_hashes
from kvmesh.core.engines.kv_events.dialect_fields import keys_digest
from kvmesh.core.prompts.media_tokens import media_keys
from kvmesh_lab.mocker.model.answer import Ending, GeneratedAnswer, Vocabulary, plan_ending
from kvmesh_lab.mocker.model.origin import continued_tokens
from kvmesh_lab.mocker.model.request import EngineRequest, Labels
from kvmesh_lab.mocker.reply import Reply
from kvmesh_lab.mocker.vllm_requests import GenerationRequest, output_limit
from kvmesh_lab.mocker.vllm_responses import ChoicePart, Counts, Shape

EVENT_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"),)


class Choice:
    """One answer: what the engine generates, and how much of it was sent."""

    def __init__(
        self, index: int, request: EngineRequest, answer: GeneratedAnswer, ending: Ending
    ) -> None:
        self.index = index
        self.request = request
        self.answer = answer
        self.ending = ending
        self.produced = 0
        self.sent_tokens = 0
        self._sent_characters = 0

    @property
    def is_finished(self) -> bool:
        """Return whether all tokens have been produced."""
        return self.produced >= self.ending.tokens

    def take(self, *, with_ids: bool) -> ChoicePart:
        """Return all that was produced and not taken yet."""
        first, last = self.sent_tokens, self.produced
        text = self.answer.text(first, last)
        cut = self.ending.characters
        if cut is not None:
            text = text[: max(0, cut - self._sent_characters)]
        self.sent_tokens = last
        self._sent_characters += len(text)
        finished = self.is_finished
        return ChoicePart(
            index=self.index,
            text=text,
            finish_reason=self.ending.reason if finished else None,
            stop_reason=self.ending.stop_reason if finished else None,
            token_ids=self.answer.token_ids(first, last) if with_ids else None,
        )


class Engine:
    """What making choices needs to know of the engine."""

    def __init__(self, block_size: int, max_model_len: int, vocabulary: Vocabulary) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocabulary = vocabulary


def make_choices(
    engine: Engine,
    request: GenerationRequest,
    prompts: "Sequence[array[int]]",
    labels: Labels,
    response_id: str,
) -> list[Choice]:
    """Return the choices of all prompts, in the order of their index. Raises `RequestError`."""
    root = namespace_root(lora=labels.lora_name or "", cache_salt=labels.cache_salt or "")
    choices: list[Choice] = []
    asked = request.prompts if request.kind == "completion" else ()
    for place, prompt in enumerate(prompts):
        may_continue = place < len(asked) and isinstance(asked[place], list)
        limit = output_limit(request, len(prompt), engine.max_model_len)
        size = engine.block_size
        media = media_keys(labels.media, size, len(prompt) // size + 1)
        hashes = [] if media else sequence_hashes(prompt, size, root)
        for number in range(request.choices):
            seed = request.seed * 64 + number
            words = engine.vocabulary
            continued = 0
            if may_continue:
                continued = continued_tokens(prompt, words, root=root, seed=seed)
            answer = GeneratedAnswer(prompt, size, words, root=root, seed=seed, continued=continued)
            answer.extras = {block: keys_digest(keys) for block, keys in media.items()}
            ending = plan_ending(answer, request.limited_rules(limit))
            index = len(choices)
            made = EngineRequest(
                f"{response_id}-{index}", hashes, len(prompt), ending.tokens, answer, labels
            )
            made.report_cached = request.report_cached
            made.ensure_hashes(len(prompt) // size)
            choices.append(Choice(index, made, answer, ending))
    return choices


class Generation:
    """Turns tokens into one HTTP answer: a stream, or all of it at the end."""

    def __init__(
        self, reply: Reply, request: GenerationRequest, shape: Shape, choices: list[Choice]
    ) -> None:
        self.choices = choices
        self._reply = reply
        self._request = request
        self._shape = shape
        self._open = len(choices)
        self._begun = False
        self._first_cached: int | None = None

    def start(self, on_disconnect: Callable[[], None]) -> None:
        """Begin the answer; a stream's head leaves now."""
        self._reply.on_disconnect = on_disconnect
        if self._request.stream:
            self._reply.start(200, EVENT_STREAM)

    def advance(self, choice: Choice) -> bool:
        """Take one more token of `choice`; return whether the whole answer is complete."""
        choice.produced += 1
        if self._request.stream:
            self._stream(choice)
        self._open -= choice.is_finished
        if self._open:
            return False
        if self._request.stream:
            self._end_stream()
        else:
            self._respond()
        return True

    def _stream(self, choice: Choice) -> None:
        first = choice.sent_tokens == 0
        ids = _prompt_ids(choice) if first and self._request.return_token_ids else None
        data = b""
        if not self._begun:
            self._begun = True
            self._first_cached = choice.request.cached_tokens
            counts = Counts(choice.answer.prompt_tokens, 0)
            data = self._shape.opening(self._request.choices, ids, counts)
        part = choice.take(with_ids=self._request.return_token_ids)
        counts = Counts(choice.answer.prompt_tokens, choice.sent_tokens)
        self._reply.write(data + self._shape.chunk(part, ids, counts))

    def _end_stream(self) -> None:
        counts = self._counts(self._first_cached)
        self._reply.write(self._shape.end(counts, include_usage=self._request.include_usage))
        self._reply.end()

    def _respond(self) -> None:
        with_ids = self._request.return_token_ids
        parts = [choice.take(with_ids=with_ids) for choice in self.choices]
        ids = [_prompt_ids(choice) for choice in self.choices] if with_ids else None
        last = self.choices[-self._request.choices]
        counts = self._counts(last.request.cached_tokens)
        self._reply.respond(200, self._shape.whole(parts, ids, counts))

    def _counts(self, cached: int | None) -> Counts:
        prompts = self.choices[:: self._request.choices]
        return Counts(
            prompt=sum(choice.answer.prompt_tokens for choice in prompts),
            completion=sum(choice.sent_tokens for choice in self.choices),
            cached=cached,
        )


def _prompt_ids(choice: Choice) -> list[int]:
    return choice.answer.tokens[: choice.answer.prompt_tokens].tolist()
