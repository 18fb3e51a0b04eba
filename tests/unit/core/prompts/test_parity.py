from array import array

import msgspec
import pytest

from kvmesh.core.prompts.parity import (
    MOST_MODELS,
    MOST_NAMED,
    OTHERS,
    ParityOptions,
    ParityProbe,
    ask_for_ids,
    engine_prompt_ids,
    first_difference,
)

OPTIONS = ParityOptions(first=2, sample_every=10, probe_every=3, regain_after=2)


def asked(probe: ParityProbe, requests: int) -> list[int]:
    return [number for number in range(1, requests + 1) if probe.wants("m")]


def test_the_first_answers_and_then_a_sample_are_asked() -> None:
    assert asked(ParityProbe(OPTIONS), 30) == [1, 2, 10, 20, 30]


def test_what_need_not_be_asked_passes_and_is_counted() -> None:
    probe = ParityProbe(OPTIONS)
    passed: list[int] = []
    for number in range(1, 31):
        if probe.passes("m"):
            passed.append(number)
        else:
            assert probe.wants("m")
    assert set(range(1, 31)) - set(passed) == {1, 2, 10, 20, 30}

    probe.observe("m", [1], [2])
    assert not probe.passes("m")
    assert ParityProbe(ParityOptions(sample_every=0)).passes("m")


def test_a_model_that_passes_is_not_the_one_that_is_forgotten() -> None:
    probe = ParityProbe(ParityOptions(first=1, sample_every=100))
    for number in range(MOST_MODELS):
        assert probe.wants(f"m{number}")

    assert probe.passes("m0")
    assert probe.wants("new")

    assert probe.passes("m0")
    assert not probe.passes("m1")


def test_a_probe_that_is_off_asks_nothing() -> None:
    assert asked(ParityProbe(ParityOptions(sample_every=0)), 10) == []


def test_a_model_in_doubt_is_asked_more_often() -> None:
    probe = ParityProbe(OPTIONS)
    probe.observe("m", [1], [2])

    assert asked(probe, 9) == [1, 2, 3, 6, 9]


def test_one_disagreement_ends_the_trust_and_agreements_in_a_row_restore_it() -> None:
    probe = ParityProbe(OPTIONS)
    same, other = [1, 2, 3], [1, 2, 4]

    reports = [probe.observe("m", same, ids) for ids in (same, other, same, other, same, same)]

    assert [report.trusted for report in reports] == [True, False, False, False, False, True]
    assert [report.changed for report in reports] == [False, True, False, False, False, True]
    assert "m" not in probe.doubted
    assert (probe.statistics().compared, probe.statistics().disagreements) == (6, 2)


def test_models_are_judged_apart() -> None:
    probe = ParityProbe(OPTIONS)

    probe.observe("bad", [1], [2])

    assert "bad" in probe.doubted
    assert "good" not in probe.doubted
    assert probe.statistics().untrusted == ("bad",)


def test_only_ids_known_to_be_cut_may_be_fewer() -> None:
    probe = ParityProbe(OPTIONS)

    assert probe.observe("m", [1], [1, 2], truncated=True).trusted
    assert not probe.observe("m", [1], [1, 2]).trusted
    assert first_difference([1], [1, 2]) == 1


@pytest.mark.parametrize("position", [0, 1])
def test_a_report_of_an_early_difference_shows_the_ids_from_the_first(position: int) -> None:
    ours = list(range(20))
    engine = [99 if at == position else token for at, token in enumerate(ours)]

    report = ParityProbe(OPTIONS).observe("m", ours, engine)

    assert (report.our_ids, report.engine_ids[position]) == (tuple(range(position + 6)), 99)


@pytest.mark.parametrize(
    ("body", "whole"),
    [(b'{"a":{"b":1}}', b'{"x":1,"a":{"b":1}}'), (b"{ } ", b'{"x":1 } ')],
)
def test_fields_go_in_front_of_a_body_of_any_shape(body: bytes, whole: bytes) -> None:
    assert ask_for_ids(body, {"x": b"1"}) == whole


def test_a_report_says_where_and_how_the_ids_differ() -> None:
    ours, engine = array("I", range(20)), [*range(10), 99, 98]

    wrong = ParityProbe(OPTIONS).observe("m", ours, engine).describe()
    right = ParityProbe(OPTIONS).observe("m", ours, list(ours)).describe()

    assert "from position 10 on: ours [8, 9, 10, 11, 12, 13, 14, 15] of 20" in wrong
    assert "the engine's [8, 9, 99, 98] of 12" in wrong
    assert right == "model m: 20 prompt token ids agree with the engine's"


@pytest.mark.parametrize(
    ("ours", "engine", "truncated", "position"),
    [
        ([], [], False, None),
        ([1, 2], [1, 2], False, None),
        ([1, 2], [1], False, 1),
        ([1], [1, 2], False, 1),
        ([1], [1, 2], True, None),
        ([1, 2], [1], True, 1),
        ([1, 3], [1, 2, 4], True, 1),
    ],
)
def test_ids_differ_at_the_first_position_that_differs(
    ours: list[int], engine: list[int], truncated: bool, position: int | None
) -> None:
    assert first_difference(ours, engine, truncated=truncated) == position


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ({"prompt_token_ids": [1, 2], "choices": []}, [1, 2]),
        ({"choices": [{"prompt_token_ids": [3]}, {"prompt_token_ids": [4]}]}, [3]),
        ({"choices": [{"text": "x"}], "sglext": {"input_ids": [5]}}, [5]),
        (
            {"choices": [{"text": "x"}], "sglext": {"input_ids": None}, "prompt_token_ids": None},
            None,
        ),
        ({"choices": []}, None),
        ({"prompt_token_ids": ["x"]}, None),
        ([1], None),
    ],
)
def test_each_engines_ids_are_found_in_its_answer(answer: object, ids: list[int] | None) -> None:
    assert engine_prompt_ids(msgspec.json.encode(answer)) == ids


def test_asking_keeps_the_clients_own_wish_and_bytes() -> None:
    wish = {"tell": b"true", "how": b'"all"'}
    assert ask_for_ids(b'{"a":1}', wish) == b'{"tell":true,"how":"all","a":1}'
    assert msgspec.json.decode(ask_for_ids(b" {}", wish)) == {"tell": True, "how": "all"}
    declined = ask_for_ids(b'{"tell":false}', {"tell": b"true"})
    assert msgspec.json.decode(declined) == {"tell": False}
    assert ask_for_ids(b'{"a":1}', {}) == b'{"a":1}'


def test_names_of_clients_do_not_pile_up() -> None:
    probe = ParityProbe(ParityOptions(sample_every=1000))
    probe.observe("served", [1], [2])

    for number in range(10 * MOST_MODELS):
        probe.wants(f"no-such-model-{number}")

    assert (len(probe), probe.doubted) == (MOST_MODELS, {"served"})


def test_a_model_that_is_asked_for_again_and_again_is_remembered_among_others() -> None:
    probe = ParityProbe(ParityOptions(first=3, sample_every=1000))

    asked = 0
    for number in range(10 * MOST_MODELS):
        asked += probe.wants("served")
        probe.wants(f"no-such-model-{number}")

    assert asked == 3 + 10 * MOST_MODELS // 1000


def test_models_in_doubt_are_no_more_than_are_remembered() -> None:
    probe = ParityProbe(OPTIONS)

    for number in range(10 * MOST_MODELS):
        probe.observe(f"any-name-{number}", [1], [2])

    assert len(probe) == len(probe.doubted) == MOST_MODELS


def test_of_many_models_in_doubt_some_are_named_and_the_others_counted() -> None:
    probe = ParityProbe(OPTIONS)
    probe.observe("m", [1], [2])
    assert probe.statistics().by_model() == {"m": 1.0}

    for number in range(99):
        probe.observe(f"any-name-{number}", [1], [2])

    named = probe.statistics().by_model()
    assert (len(named), named[OTHERS]) == (MOST_NAMED + 1, 100.0 - MOST_NAMED)
