"""When engines join and leave, as flags say it: what is read, and what makes no sense."""

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.simulator.fleet.timetable import Times, Timetable, parse_timetable


@pytest.mark.parametrize(
    ("join", "leave", "joins", "leaves"),
    [
        (["120"], [], ((3, 120.0),), ()),
        (["3@120", "w2@0.5"], ["worker-3@200"], ((3, 120.0), (2, 0.5)), ((3, 200.0),)),
        (["60", "120"], ["300"], ((3, 60.0), (2, 120.0)), ((1, 300.0),)),
        (["3@60", "60"], ["2@60"], ((3, 60.0), (1, 60.0)), ((2, 60.0),)),
        ([], ["0@1", "1@2"], (), ((0, 1.0), (1, 2.0))),
    ],
)
def test_engines_are_named_or_taken_from_the_highest_number(
    join: list[str], leave: list[str], joins: Times, leaves: Times
) -> None:
    found = parse_timetable(join, leave, 4)

    assert (found.joins, found.leaves) == (joins, leaves)


@pytest.mark.parametrize("flag", ["join", "leave"])
@pytest.mark.parametrize(
    "text", ["", "-1", "1@-1", "4@1", "1e25", "1" + "0" * 25, "soon", "1@", "@1", "nan", "inf", "٣"]
)
def test_what_is_no_engine_and_second_is_refused_with_its_value_and_a_remedy(
    flag: str, text: str
) -> None:
    join, leave = ([text], []) if flag == "join" else ([], [text])

    with pytest.raises(ConfigError, match=rf"^--{flag} '.*: write \[WHO@\]SECONDS, .* 0 to 3 "):
        parse_timetable(join, leave, 4)


def test_an_error_shows_the_beginning_of_a_long_value() -> None:
    with pytest.raises(ConfigError, match=r"\(100,000 characters\)") as error:
        parse_timetable(["9" * 100_000], [], 4)

    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("join", "leave", "words"),
    [
        (["1@5", "w1@6"], [], r"^--join 'w1@6': engine 1 is named twice"),
        (["0@1", "1@1"], ["9"], r"^--leave 9: all 2 engines are named; raise --engines"),
        (["1"] * 3, [], r"^--join 1: all 2 engines are named; raise --engines"),
        (["0@5", "1@6"], [], r"^--join: nobody serves before 5 s"),
        ([], ["0@5", "1@6"], r"^--leave 1@6: no engine is left to serve"),
        (["1@7"], ["0@6"], r"^--leave 0@6: no engine is left to serve"),
        (["1@7"], ["1@6"], r"^--leave 1@6: the engine joins at 7 s; have it leave later$"),
    ],
)
def test_somebody_serves_at_any_time(join: list[str], leave: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_timetable(join, leave, 2)


def test_an_engine_that_only_computes_prompts_does_not_serve() -> None:
    with pytest.raises(ConfigError, match=r"^--leave 2@9: no engine is left"):
        parse_timetable(["1@5"], ["2@9"], 3, prefillers=2)

    assert parse_timetable(["1@5"], ["0@9"], 3, prefillers=2).leaves == ((0, 9.0),)


def test_one_that_joins_when_the_last_leaves_serves_on() -> None:
    assert parse_timetable(["1@6"], ["0@6"], 2).leaves == ((0, 6.0),)


def test_changes_are_told_in_the_order_of_time() -> None:
    table = Timetable(4, joins=((3, 120.0), (2, 1.5)), leaves=((0, 60.0),))

    assert (
        table.words() == "engine 2 joins at 1.5 s, engine 0 leaves at 60 s, engine 3 joins at 120 s"
    )
    assert not Timetable(4).words()
