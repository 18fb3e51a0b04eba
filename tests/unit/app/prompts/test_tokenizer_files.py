import sys
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken as NewToken
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from kvmesh.app.prompts.tokenizer import load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.byte_tokenizer import check_ids
from kvmesh.core.prompts.hf_tokenizer import HfTokenizer
from kvmesh.core.prompts.segment_cache import AddedToken
from kvmesh.core.prompts.tokenizer_facts import TokenizerOptions, TooMuchNewTextError
from kvmesh.errors import ConfigError, RequestError
from tests.unit.app.prompts.tokenizer_models import CHATML, random_chat, train, write_model

SLOW = TokenizerOptions(backend="tokenizers")
CHAT = ChatInput.from_body({"messages": [{"role": "user", "content": "Hi"}]})


def load(path: str, **arguments: Any) -> HfTokenizer:
    tokenizer = load_tokenizer(path, **{"options": SLOW, **arguments})
    assert isinstance(tokenizer, HfTokenizer)
    return tokenizer


def prompt(tokenizer: HfTokenizer, chat: ChatInput = CHAT) -> str:
    """Return the prompt as text, special tokens included."""
    reference = Tokenizer.from_str(train())
    return reference.decode(list(tokenizer.encode_chat(chat)), skip_special_tokens=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "small")


def test_a_directory_is_loaded_with_its_template(model: str) -> None:
    tokenizer = load(model)

    assert prompt(tokenizer) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer.encode_chat(CHAT)) == "user\nHi\nassistant\n"
    assert tokenizer.name == "small"
    assert tokenizer.statistics().backend == "tokenizers"


def test_the_file_itself_names_its_directory(model: str) -> None:
    assert load(f"{model}/tokenizer.json").name == "small"


def test_the_vocabulary_is_the_models_embedding(model: str, tmp_path: Path) -> None:
    path = write_model(tmp_path)
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 4096}}')

    assert load(path).vocab_size == 4096
    assert load(model).vocab_size == Tokenizer.from_str(train()).get_vocab_size()
    with pytest.raises(RequestError, match="token id 4096 at position 2"):
        check_ids([1, 2, 4096], load(path).vocab_size)


def test_long_texts_are_for_a_thread(model: str) -> None:
    tokenizer = load(model)

    assert tokenizer.inline_characters >= 1_000
    assert tokenizer.inline_characters < 10_000


def test_threads_share_a_tokenizer(model: str) -> None:
    shared = load(model, options=TokenizerOptions(backend="tokenizers", cache_bytes=40_000))
    alone = load(model)
    chats = [ChatInput.from_body(random_chat(seed)) for seed in range(12)] * 4

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(shared.encode_chat, chats))

    assert together == [alone.encode_chat(chat) for chat in chats]
    assert shared.statistics().segments.size <= 30_000


class TestTemplates:
    """Where the chat template is looked for, newest form first."""

    LIST = (
        {"name": "default", "template": "<|im_start|>default"},
        {"name": "tool_use", "template": "<|im_start|>tools"},
    )
    TOOLS = ChatInput.from_body(
        {"messages": CHAT.messages, "tools": [{"type": "function", "function": {"name": "f"}}]}
    )

    def test_a_list_of_named_templates(self, tmp_path: Path) -> None:
        tokenizer = load(write_model(tmp_path, template=self.LIST))

        assert prompt(tokenizer) == "<|im_start|>default"
        assert prompt(tokenizer, self.TOOLS) == "<|im_start|>tools"

    def test_jinja_files_replace_the_configuration(self, tmp_path: Path) -> None:
        path = write_model(tmp_path)
        (tmp_path / "chat_template.jinja").write_text("<|im_start|>file")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("<|im_start|>more")

        assert prompt(load(path)) == "<|im_start|>file"
        assert prompt(load(path), self.TOOLS) == "<|im_start|>more"

    def test_a_processors_template_file_is_the_last_resort(self, tmp_path: Path) -> None:
        path = write_model(tmp_path, template=None)
        (tmp_path / "chat_template.json").write_text('{"chat_template": "<|im_start|>old"}')

        assert prompt(load(path)) == "<|im_start|>old"

    def test_no_template_leaves_completions(self, tmp_path: Path) -> None:
        tokenizer = load(write_model(tmp_path, template=None))

        assert list(tokenizer.encode("<|im_end|>", add_special_tokens=True)) == [2]
        with pytest.raises(RequestError, match="has no chat template"):
            tokenizer.encode_chat(CHAT)

    def test_an_override_is_a_text_a_file_or_a_name(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "m", template=self.LIST)
        file = tmp_path / "other.jinja"
        file.write_text("<|im_start|>other")

        assert prompt(load(path, template="<|im_start|>{{ 1 + 1 }}")) == "<|im_start|>2"
        assert prompt(load(path, template=str(file))) == "<|im_start|>other"
        assert prompt(load(path, template="tool_use")) == "<|im_start|>tools"

    def test_an_override_that_is_no_file_is_named(self, model: str) -> None:
        with pytest.raises(ConfigError, match=r"chat template nowhere\.jinja cannot be read"):
            load(model, template="nowhere.jinja")

    def test_a_broken_template_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"chat template default.*line 1"):
            load(write_model(tmp_path, template="{% for %}"))

    def test_the_clock_is_an_argument(self, tmp_path: Path) -> None:
        path = write_model(tmp_path, template="{{ strftime_now('%d %B %Y') }}")
        tokenizer = load(path, clock=lambda: datetime(2031, 5, 6, tzinfo=UTC))

        assert prompt(tokenizer) == "06 May 2031"


class TestMissingFiles:
    """Each error names the path and what to do."""

    def test_a_model_name_is_not_downloaded(self) -> None:
        with pytest.raises(ConfigError, match=r"Qwen/Qwen3-8B does not exist: .*hf download"):
            load_tokenizer("Qwen/Qwen3-8B")

    def test_a_directory_without_tokenizer_json(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist: .*save_pretrained"):
            load_tokenizer(str(tmp_path))

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
    def test_a_damaged_file(self, tmp_path: Path, name: str) -> None:
        path = write_model(tmp_path)
        (tmp_path / name).write_text('{"version')

        with pytest.raises(ConfigError, match=rf"{name} cannot be .*download it again"):
            load_tokenizer(path)


class TestSpecialTokens:
    """What tokenizer_config.json and the post-processor add."""

    def test_completions_get_what_the_post_processor_adds(self, tmp_path: Path) -> None:
        file = Tokenizer.from_str(train())
        file.post_processor = TemplateProcessing(
            single="<|endoftext|> $A <|im_end|>",
            special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)],
        )
        tokenizer = load(write_model(tmp_path, tokenizer=file.to_str()))
        bare = list(tokenizer.encode("Hello", add_special_tokens=False))

        assert list(tokenizer.encode("Hello", add_special_tokens=True)) == [0, *bare, 2]
        assert prompt(tokenizer).startswith("<|im_start|>")

    def test_tokens_only_the_configuration_knows_join_the_vocabulary(self, tmp_path: Path) -> None:
        size = Tokenizer.from_str(train()).get_vocab_size()
        decoder = {str(size): {"content": "<|new|>", "normalized": False, "special": True}}
        config = {
            "added_tokens_decoder": decoder,
            "pad_token": "<|pad|>",
            "additional_special_tokens": ["<|extra|>", "<|im_end|>"],
        }

        tokenizer = load(write_model(tmp_path, config=config))
        ids = tokenizer.encode("<|new|><|pad|><|extra|>", add_special_tokens=False)

        assert list(ids) == [size, size + 1, size + 2]
        assert tokenizer.vocab_size == size + 3

    def test_truncation_written_into_the_file_is_ignored(self, tmp_path: Path) -> None:
        file = Tokenizer.from_str(train())
        file.enable_truncation(2)
        file.enable_padding(length=9)
        tokenizer = load(write_model(tmp_path, tokenizer=file.to_str()))

        assert len(tokenizer.encode("a b c d e", add_special_tokens=False)) == 5

    def test_tokens_that_reach_into_their_neighbours_are_not_split_at(self, tmp_path: Path) -> None:
        file = Tokenizer.from_str(train())
        file.add_special_tokens([NewToken("<|strip|>", lstrip=True, rstrip=True)])
        path = write_model(tmp_path, tokenizer=file.to_str())
        text = "a  <|im_start|>  <|strip|>  b <|im_end|> <|strip|><|im_end|>"

        assert list(load(path).encode(text, add_special_tokens=False)) == file.encode(text).ids


class FlatTokenizer:
    """Answers like fastokens, correctly or with one kind of text wrong."""

    broken = False

    def __init__(self, text: str) -> None:
        self._tokenizer = Tokenizer.from_str(text)

    @classmethod
    def from_json_str(cls, text: str) -> "FlatTokenizer":
        return cls(text)

    def encode_batch_flat(
        self, inputs: Sequence[str], *, add_special_tokens: bool
    ) -> tuple[bytes, bytes]:
        ids, offsets = array("I"), array("Q", [0])
        for text in inputs:
            shown = text.replace("\u00e9", "e") if self.broken else text
            ids.extend(self._tokenizer.encode(shown, add_special_tokens=add_special_tokens).ids)
            offsets.append(len(ids))
        return ids.tobytes(), offsets.tobytes()


class BrokenTokenizer(FlatTokenizer):
    broken = True


class RefusingTokenizer:
    @staticmethod
    def from_json_str(text: str) -> FlatTokenizer:
        raise ValueError(f"unsupported model in {len(text)} characters")


class TestFastokens:
    """The faster backend is used when it is there and proves itself at load."""

    def install(self, monkeypatch: pytest.MonkeyPatch, tokenizer: object) -> None:
        module = None if tokenizer is None else SimpleNamespace(Tokenizer=tokenizer)
        monkeypatch.setitem(sys.modules, "fastokens", module)

    def test_it_is_used_when_it_agrees(self, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.install(monkeypatch, FlatTokenizer)
        tokenizer = load(model, options=TokenizerOptions())

        assert tokenizer.statistics().backend == "fastokens"
        assert tokenizer.statistics().note == ""
        assert tokenizer.encode_chat(CHAT) == load(model).encode_chat(CHAT)
        assert tokenizer.inline_characters >= 10_000

    @pytest.mark.parametrize(
        ("replacement", "note"),
        [
            (None, "fastokens is not installed"),
            (BrokenTokenizer, "fastokens disagrees with tokenizers on"),
            (RefusingTokenizer, "fastokens cannot load this tokenizer: unsupported model"),
        ],
    )
    def test_it_is_left_out_otherwise_and_the_reason_told(
        self, model: str, monkeypatch: pytest.MonkeyPatch, replacement: object, note: str
    ) -> None:
        self.install(monkeypatch, replacement)
        tokenizer = load(model, options=TokenizerOptions())

        assert tokenizer.statistics().backend == "tokenizers"
        assert tokenizer.statistics().note.startswith(note)
        with pytest.raises(ConfigError, match=f"was demanded, but {note}"):
            load(model, options=TokenizerOptions(backend="fastokens"))

    def test_the_real_one_agrees_where_it_is_installed(self, model: str) -> None:
        pytest.importorskip("fastokens")

        assert load(model, options=TokenizerOptions()).statistics().backend == "fastokens"


@pytest.mark.parametrize("sees_through", [False, True])
def test_when_segments_prove_dependent_at_load_whole_prompts_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sees_through: bool
) -> None:
    file = Tokenizer.from_str(train())
    file.add_tokens([NewToken("<|strip|>", lstrip=True, rstrip=True, normalized=False)])
    path = write_model(tmp_path, tokenizer=file.to_str(), template=CHATML)
    if sees_through:
        monkeypatch.setattr(AddedToken, "is_atomic", True)

    tokenizer = load(path)
    text = "a <|strip|> <|im_end|> b"

    assert list(tokenizer.encode(text, add_special_tokens=False)) == file.encode(text).ids
    assert ("whole prompts are encoded" in tokenizer.statistics().note) is sees_through


def test_no_more_new_text_is_tokenised_at_once_than_is_allowed(model: str) -> None:
    tokenizer = load(model)
    long = "a word " * 50
    known = tokenizer.pack(long, add_special_tokens=False)

    tokenizer.bound_new_text(40)
    again = tokenizer.pack(long, add_special_tokens=False)
    short = tokenizer.pack("short", add_special_tokens=False)
    with pytest.raises(TooMuchNewTextError):
        tokenizer.pack(long + "and more of it", add_special_tokens=False)
    with ThreadPoolExecutor(1) as other:
        text = f"{long} elsewhere"
        elsewhere = other.submit(tokenizer.pack, text, add_special_tokens=False).result()
    tokenizer.bound_new_text(inf)

    assert again == known
    assert len(short) > 0
    assert len(elsewhere) > len(known)
    assert len(tokenizer.pack(long + "and more of it", add_special_tokens=False)) > len(known)
