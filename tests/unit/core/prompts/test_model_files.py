import pytest

from kvmesh.core.prompts.model_files import (
    ConfiguredToken,
    model_vocab_size,
    parse_tokenizer_config,
)
from kvmesh.errors import ConfigError

TOKEN = {"content": "<t>", "normalized": False, "special": True}


def test_named_tokens_are_read_as_text_or_objects() -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "image_token": "<i>",
        "pad_token": None,
        "add_bos_token": True,
        "unk_token": {"content": 1},
    }

    parsed = parse_tokenizer_config(config, {})

    assert parsed.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<i>"}


def test_extra_special_tokens_may_be_a_list_or_named() -> None:
    listed = parse_tokenizer_config({"additional_special_tokens": ["<a>", TOKEN, 3]}, {})
    named = parse_tokenizer_config({"extra_special_tokens": {"video_token": "<v>"}}, {})

    assert (listed.extra_tokens, named.named_tokens) == (("<a>", "<t>"), {"video_token": "<v>"})


def test_the_old_token_map_counts_only_without_the_new_table() -> None:
    token_map = {"bos_token": "<map>"}

    old = parse_tokenizer_config({"bos_token": "<s>"}, token_map)
    new = parse_tokenizer_config({"bos_token": "<s>", "added_tokens_decoder": {}}, token_map)

    assert (old.named_tokens, new.named_tokens) == ({"bos_token": "<map>"}, {"bos_token": "<s>"})


def test_added_tokens_come_in_id_order() -> None:
    decoder = {"10": {"content": "<b>"}, "9": TOKEN}

    parsed = parse_tokenizer_config({"added_tokens_decoder": decoder}, {})

    assert parsed.added_tokens == (
        ConfiguredToken("<t>", normalized=False, special=True),
        ConfiguredToken("<b>"),
    )


@pytest.mark.parametrize("decoder", [{"x": TOKEN}, {"1": {"content": 1}}, {"1": 2}])
def test_a_damaged_token_table_is_refused(decoder: object) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json, added_tokens_decoder"):
        parse_tokenizer_config({"added_tokens_decoder": decoder}, {})


@pytest.mark.parametrize(
    ("value", "templates"),
    [
        ("T", {"default": "T"}),
        (
            [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}, 1],
            {"default": "A", "tool_use": "B"},
        ),
        (None, {}),
    ],
)
def test_templates_have_names(value: object, templates: dict[str, str]) -> None:
    assert parse_tokenizer_config({"chat_template": value}, {}).templates == templates


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 10}, 10),
        ({"text_config": {"vocab_size": 11}}, 11),
        ({"vocab_size": "many", "text_config": []}, None),
        ({}, None),
    ],
)
def test_the_vocabulary_is_as_large_as_the_embedding(
    config: dict[str, object], size: int | None
) -> None:
    assert model_vocab_size(config) == size
