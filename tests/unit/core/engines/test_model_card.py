import msgspec
import pytest

from kvmesh.bounds import MAX_NAME, MAX_NAMES
from kvmesh.core.engines.model_card import MAX_CARD_BYTES, merge_cards, read_cards


def listed(*models: object) -> bytes:
    return msgspec.json.encode({"object": "list", "data": models})


def test_fields_of_the_first_that_has_them_and_the_least_length_are_kept() -> None:
    one = read_cards(listed({"id": "m", "max_model_len": 8192, "root": "/m", "created": 9}))
    other = read_cards(listed({"id": "m", "max_model_len": 4096, "root": "/n", "created": 5}))
    silent = read_cards(listed({"id": "m", "max_model_len": None, "parent": None}))

    for reported in ([one, other, silent], [other, silent, one], [silent, other, one]):
        [card] = merge_cards(["m"], reported)

        assert (card["max_model_len"], card["created"]) == (4096, 5)
        assert card["root"] == ("/m" if reported[0] is one else "/n")
        assert card["parent"] is None
        assert (card["id"], card["object"], card["owned_by"]) == ("m", "model", "kvmesh")


def test_models_that_nobody_serves_are_left_out_and_those_nobody_tells_of_are_plain() -> None:
    reported = read_cards(listed({"id": "gone", "root": "/gone"}))

    assert merge_cards(["m"], [reported]) == [
        {"id": "m", "object": "model", "created": 0, "owned_by": "kvmesh"}
    ]


def test_a_length_that_is_no_number_yields_to_none_and_is_told_as_it_came() -> None:
    odd = read_cards(listed({"id": "m", "max_model_len": "long"}))
    plain = read_cards(listed({"id": "m", "max_model_len": 4096}))

    assert merge_cards(["m"], [odd, plain])[0]["max_model_len"] == "long"
    assert merge_cards(["m"], [plain, odd])[0]["max_model_len"] == 4096


@pytest.mark.parametrize("lie", [-1, 0, True, False, -1e300])
def test_a_length_that_cannot_be_is_not_believed(lie: object) -> None:
    odd = read_cards(listed({"id": "m", "max_model_len": lie, "root": "/m"}))
    plain = read_cards(listed({"id": "m", "max_model_len": 4096}))

    for reported in ([odd, plain], [plain, odd]):
        [card] = merge_cards(["m"], reported)

        assert (card["max_model_len"], card["root"]) == (4096, "/m")
    assert "max_model_len" not in merge_cards(["m"], [odd])[0]


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"\xff", b'{"data": 1}', b'{"data": [1]}', b"[" * 100_000],
)
def test_what_is_no_list_of_models_tells_nothing(body: bytes) -> None:
    assert read_cards(body) == {}


def test_names_and_cards_that_cannot_be_told_again_are_left_out() -> None:
    wrong = ["", "x" * (MAX_NAME + 1), "a\nb", 7, None]
    cards = read_cards(
        listed(
            *({"id": name} for name in wrong),
            {"object": "model"},
            {"id": "long", "owned_by": "x" * MAX_CARD_BYTES},
            {"id": "good", "root": "first"},
            {"id": "good", "root": "second"},
        )
    )

    assert cards == {"good": {"id": "good", "root": "first"}}
    assert read_cards(listed(*({"id": f"m{n}"} for n in range(MAX_NAMES + 1)))) == {}


def test_numbers_beyond_what_json_of_ours_holds_leave_their_model_out() -> None:
    cards = read_cards(b'{"data":[{"id":"m","created":%b},{"id":"n"}]}' % (b"9" * 30))

    assert "n" in cards
    for card in cards.values():
        msgspec.json.encode(card)
