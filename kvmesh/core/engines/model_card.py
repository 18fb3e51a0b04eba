"""What engines say of a model on `/v1/models`, merged over those that serve it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_NAMES, UNREADABLE, is_name

Card = Mapping[str, object]
"""A model: OpenAI's fields `id`, `object`, `created`, `owned_by`, and those of its engine."""

MAX_CARD_BYTES: Final = 4096
"""JSON of one model: what an engine says more of one is left out."""

_LENGTH: Final = "max_model_len"
_LEAST: Final = ("created", _LENGTH)
_EMPTY: Final[dict[str, object]] = {"id": "", "object": "model", "created": 0, "owned_by": "kvmesh"}


class _List(msgspec.Struct):
    data: Annotated[list[dict[str, object]], Meta(max_length=MAX_NAMES)]


def read_cards(body: bytes) -> dict[str, Card]:
    """Return the models in an answer of `/v1/models` by name; those that cannot be told again, and
    more than `MAX_NAMES`, are left out. Empty for what is no list of models.
    """
    cards: dict[str, Card] = {}
    try:
        for one in msgspec.json.decode(body, type=_List).data:
            name = one.get("id")
            if not isinstance(name, str) or not is_name(name) or name in cards:
                continue
            if len(msgspec.json.encode(one)) <= MAX_CARD_BYTES:
                cards[name] = one
    except (*UNREADABLE, OverflowError):
        return {}
    return cards


def merge_cards(names: Iterable[str], reported: Iterable[Mapping[str, Card]]) -> list[Card]:
    """Return a card of each of `names`: of each field what the first engine says that has it, of
    `max_model_len` and `created` the least of all.

    A request that fits in the least length fits in every engine it may go to.
    """
    merged: dict[str, dict[str, object]] = {name: {} for name in names}
    for cards in reported:
        for name, card in cards.items():
            mine = merged.get(name)
            if mine is not None:
                _add(mine, card)
    return [{**_EMPTY, "id": name, **card} for name, card in merged.items()]


def _add(mine: dict[str, object], card: Card) -> None:
    for field, value in card.items():
        held = mine.get(field)
        if field == _LENGTH and isinstance(value, int | float) and (value is True or value < 1):
            continue  # no model is so short: it would be the least of all
        if held is None or (field in _LEAST and _is_less(value, held)):
            mine[field] = value


def _is_less(value: object, held: object) -> bool:
    return isinstance(value, int | float) and isinstance(held, int | float) and value < held
