from pathlib import Path

import pytest

from kvmesh.app.serve import formula_file
from kvmesh.app.serve.formula_file import MOST, load_formulas, named_formulas
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.errors import ConfigError

EXAMPLE = str(Path(__file__).parents[4] / "examples" / "my_cost.py")


def test_settings_name_files_and_functions() -> None:
    texts = [
        "a/b.py:f:w=1",
        "kv:c.py:g",
        "model=x*,kv-cost=a/b.py:f",
        "kv:dynamo",
        "predicted-time",
    ]

    assert named_formulas(texts) == [("a/b.py", "f"), ("c.py", "g")]
    assert load_formulas(["predicted-time", "kv:dynamo:overlap_score_weight=2", ""]) is PUBLISHED


def test_the_example_is_loaded_with_its_weights() -> None:
    formulas = load_formulas([f"{EXAMPLE}:my_cost:hit=2", f"kv:{EXAMPLE}:hit_minus_load"])

    mine, share = (
        formulas.plain(f"my_cost.py:{name}").cost for name in ("my_cost", "hit_minus_load")
    )
    assert [spec.name for spec in mine.weights.specs] == ["hit", "per_request", "crowd"]
    assert [spec.meaning != "" for spec in mine.weights.specs] == [True] * 3
    assert (mine.maximise, share.maximise) == (False, True)
    assert len(formulas.own()) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def g(c, f):\n    return 0\n", "there is no function 'f'; write .*own.py:FUNCTION"),
        ("def f(c, f:\n", "cost formula .*own.py: .*line 1"),
        ("\0", "cost formula .*own.py"),
        ("import nowhere_at_all\n", "own.py: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)\n", "own.py: SystemExit: 3"),
        ("f = 3\n", "own.py:f is no plain function"),
        ("def f(c, f):\n    return 1 / c.prompt_tokens\n", "own.py:f: ZeroDivisionError"),
        ("def f(c, f):\n    while True:\n        pass\n", "own.py:f: does not end within 0.5 s"),
        (
            "def f(c, f):\n    try:\n        return 1\n    except:\n        return 2\n",
            "own.py, line 4: it catches everything",
        ),
        (
            "def f(c, f):\n    try:\n        return 1\n    except (A, BaseException):\n        0\n",
            "own.py, line 4",
        ),
        ("while True:\n    pass\n", "own.py: still running after 0.5 s"),
    ],
)
def test_what_is_no_formula_is_refused_with_the_file(
    tmp_path: Path, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formula_file, "IMPORT_S", 0.5)
    monkeypatch.setattr("kvmesh.core.cost.own_check.LIMIT_S", 0.5)
    file = tmp_path / "own.py"
    file.write_text(text)

    with pytest.raises(ConfigError, match=words):
        load_formulas([f"{file}:f"])


def test_a_handler_that_raises_again_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def f(c, f):\n    try:\n        return 1\n    except BaseException:\n        raise\n"
    )

    assert "own.py:f" in load_formulas([f"{file}:f"]).costs


def test_a_file_that_is_not_there_and_too_many_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.py: No such file"):
        load_formulas([f"{tmp_path}/nowhere.py:f"])
    with pytest.raises(ConfigError, match="9 formulas of files: at most 8"):
        load_formulas([f"{EXAMPLE}:f{number}" for number in range(MOST + 1)])


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text("def f(c, f):\n    return c.active_requests\n")

    with pytest.raises(ConfigError, match=r"'own.py:f': another has that name"):
        load_formulas([f"{tmp_path}/{folder}/own.py:f" for folder in ("a", "b")])


def test_who_stops_the_process_is_not_kept_from_it(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("raise KeyboardInterrupt\n")

    with pytest.raises(KeyboardInterrupt):
        load_formulas([f"{file}:f"])
