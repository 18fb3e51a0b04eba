import io

from rich.console import Console

from benchmarks.feedback.bench_feedback import WAYS, Played, Setting, play, table_of

SETTING = Setting("multi-turn", 24, 2, 2, 0.5, True, False, 1.0)


def test_each_way_is_played_with_the_same_requests() -> None:
    played = {way: play(SETTING, way, 0, 2.0) for way in WAYS}

    assert all(0.0 <= one.hit_rate <= 1.0 for one in played.values())
    assert all(0.0 < one.p50_ms <= one.p90_ms for one in played.values())
    assert played["full"] == play(SETTING, "full", 0, 2.0)


def test_a_row_has_the_means_over_the_seeds() -> None:
    runs = [Played(0.5, 10.0, 20.0, 0.1), Played(0.7, 30.0, 40.0, 0.3)]
    console = Console(width=200, file=io.StringIO())

    with console.capture() as shown:
        console.print(table_of([(SETTING, [runs] * len(WAYS))]))

    text = shown.get()
    assert text.count("0.600 20 30 0.20") == len(WAYS)
    assert "multi-turn r2 0.5 no lengths" in text
