"""What it costs to turn an 8k-token chat into token ids: new, with one more message, repeated; and
a new chat of 400 B behind one of 200 known system prompts.

KVMESH_BENCH_MODEL names a real model directory; without it a small BPE is trained on the spot.
"""

import copy
import importlib
import json
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from benchmarks.measure import Sample, compare, parse_options, report, time_work
from kvmesh.app.prompts.tokenizer import load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.tokenizer_facts import TokenizerOptions
from kvmesh.errors import ConfigError
from tests.unit.app.prompts.tokenizer_models import CHATML, write_model

Messages = list[dict[str, Any]]
Encode = Callable[[Messages], Sequence[int]]

PROMPT_CHARACTERS = 30_000
MESSAGES = 18
NEW_CHARACTERS = 800
SHORT_CHARACTERS = 200
SYSTEMS = 200
SHORT_CHATS = 400


class Workload:
    """Chats of real source text, the same sequence for every candidate."""

    def __init__(self) -> None:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = [*root.glob("*.py"), *root.glob("[a-z]*/*.py")]
        self._text = "\n".join(file.read_text("utf-8", "replace") for file in sorted(files)[:300])

    def message(self, rng: Random, index: int, characters: int) -> dict[str, str]:
        start = rng.randrange(len(self._text) - characters)
        role = ("user", "assistant")[index % 2]
        return {"role": role, "content": self._text[start : start + characters]}

    def chat(self, number: int) -> Messages:
        rng = Random(number)
        size = PROMPT_CHARACTERS // MESSAGES
        return [self.message(rng, index, size) for index in range(MESSAGES)]

    def next_turn(self, number: int) -> Messages:
        fresh = self.message(Random(-number - 1), 0, NEW_CHARACTERS)
        return [*self.chat(number), fresh]

    def short(self, number: int) -> Messages:
        system = self.message(Random(number % SYSTEMS), 0, SHORT_CHARACTERS)
        asked = self.message(Random(SYSTEMS + number), 0, SHORT_CHARACTERS)
        return [{**system, "role": "system"}, asked]


class Candidate:
    """One way to encode; each round takes the next chat of the workload."""

    def __init__(self, workload: Workload, encode: Encode) -> None:
        self._workload = workload
        self._encode = encode
        self._number = 0
        self._short = 0
        for number in range(SYSTEMS):
            encode(workload.short(number))

    def __call__(self) -> Sample:
        self._number += 1
        chat = self._workload.chat(self._number)
        following = self._workload.next_turn(self._number)
        new = self._time(chat)
        one_more = self._time(following)
        return {
            "new us": new,
            "one more message us": one_more,
            "repeated us": self._time(following),
            "new, 400 B cpu us": self._time_short(),
        }

    def _time_short(self) -> float:
        numbers = range(SYSTEMS + self._short, SYSTEMS + self._short + SHORT_CHATS)
        chats = [self._workload.short(number) for number in numbers]
        self._short += SHORT_CHATS
        start = time.process_time_ns()
        for chat in chats:
            self._encode(chat)
        return (time.process_time_ns() - start) / 1000 / SHORT_CHATS

    def _time(self, messages: Messages) -> float:
        own = copy.deepcopy(messages)
        start = time.perf_counter_ns()
        self._encode(own)
        return (time.perf_counter_ns() - start) / 1000


def kvmesh(path: str | None, options: TokenizerOptions | None = None) -> Encode:
    tokenizer = load_tokenizer(path, options=options)
    return lambda messages: tokenizer.encode_chat(ChatInput(messages))


def plain(path: str, template: str) -> Encode:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    source = template.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
    compiled = environment.from_string(source)
    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")

    def encode(messages: Messages) -> list[int]:
        text = compiled.render(messages=messages, tools=None, add_generation_prompt=True)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def transformers(path: str) -> Encode:
    module = importlib.import_module("transformers")
    tokenizer = module.AutoTokenizer.from_pretrained(path)

    def encode(messages: Messages) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return ids

    return encode


def peers(path: str, template: str) -> dict[str, Encode]:
    """Return every way that is installed, the plainest first."""
    found: dict[str, Encode] = {"jinja2 + tokenizers": plain(path, template)}
    try:
        found["transformers"] = transformers(path)
    except ImportError:
        print("transformers is not installed: left out")
    found["kvmesh, tokenizers"] = kvmesh(path, TokenizerOptions(backend="tokenizers"))
    try:
        found["kvmesh, fastokens"] = kvmesh(path, TokenizerOptions(backend="fastokens"))
    except ConfigError as error:
        print(f"{error}: left out")
    found["kvmesh, no model"] = kvmesh(None)
    return found


def main() -> None:
    options = parse_options("What turning an 8k-token chat into token ids costs.")
    workload = Workload()
    with tempfile.TemporaryDirectory() as directory:
        path = os.environ.get("KVMESH_BENCH_MODEL") or write_model(Path(directory))
        encoders = peers(path, chat_template(path))
        check_agreement(encoders, workload.next_turn(0))
        candidates = {name: Candidate(workload, encode) for name, encode in encoders.items()}
        report(compare(f"chat to ids, {Path(path).name}", candidates, options.rounds), options)
    text = "x" * 100_000
    chat = ChatInput([{"role": "user", "content": text}])
    tokenizer = load_tokenizer(None)
    repeats = options.size(full=2000, quick=200)
    work = {
        "100 kB prompt, byte tokenizer": lambda: time_work(
            lambda: [tokenizer.encode_chat(chat) for _ in range(repeats)], repeats
        )
    }
    report(compare("byte tokenizer", work, options.rounds), options)


def chat_template(path: str) -> str:
    """Return the template the plain candidate renders."""
    config = json.loads(Path(path, "tokenizer_config.json").read_text(encoding="utf-8"))
    return str(config.get("chat_template") or CHATML)


def check_agreement(encoders: dict[str, Encode], messages: Messages) -> None:
    """Stop unless all that use the model give the same ids."""
    results = {name: list(encode(copy.deepcopy(messages))) for name, encode in encoders.items()}
    results.pop("kvmesh, no model")
    first = next(iter(results.values()))
    assert all(ids == first for ids in results.values()), "the candidates disagree"
    print(f"{len(first):,} tokens in {len(messages)} messages; all candidates agree")


if __name__ == "__main__":
    main()
