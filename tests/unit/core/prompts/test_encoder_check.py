from collections.abc import Sequence

from kvmesh.core.prompts.encoder_check import SAMPLES, check_samples, first_disagreement


def utf8(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def folded(texts: Sequence[str]) -> list[bytes]:
    return [text.lower().encode() for text in texts]


def test_samples_hold_every_added_token_among_text() -> None:
    texts = check_samples(["<|a|>", "<|b|>"])

    assert texts[: len(SAMPLES)] == list(SAMPLES)
    assert (texts[-2], len(texts)) == ("a <|a|> b<|a|><|a|>\n<|a|>c <|a| |a|>", len(SAMPLES) + 2)


def test_the_first_text_encoded_differently_is_named() -> None:
    assert first_disagreement(utf8, utf8, SAMPLES) is None
    assert first_disagreement(utf8, folded, ["a", "B", "C"]) == "B"
