from pathlib import Path

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.plan.kinds import Kind, price_of, read_kinds

BASE = EngineOptions(block_size=64, num_gpu_blocks=1000)


def kinds(path: Path, text: str, *, learned: bool = True) -> tuple[Kind, ...]:
    file = path / "prices.toml"
    file.write_text(text)
    return read_kinds(file, BASE, learned=learned)


def test_a_kind_is_as_the_logs_engines_but_for_what_it_says(tmp_path: Path) -> None:
    same, half, other = kinds(
        tmp_path,
        """
        [same]
        price = 2.5
        [half]
        price = 1
        speed = 0.5
        kv_tokens = 6400
        most = 3
        [big]
        price = 9
        profile = "70b-2xh100"
        """,
    )

    assert (same.name, same.price, same.engine) == ("same", 2.5, BASE)
    assert (half.engine.speedup_ratio, half.engine.num_gpu_blocks, half.most) == (0.5, 100, 3)
    assert other.engine.timing == PROFILES["preble-70b"]
    assert other.engine.num_gpu_blocks == 236_015 // 64
    assert price_of((same, half, other), (2, 1, 1)) == 15.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 kinds"),
        ("a = 1", "expected `object`|Expected `object`"),
        ("[a]\nprice = 0", r"\[a\]: Expected `float` > 0"),
        ("[a]\nprice = 1\nspeed = 1e25", "<= 1000000000"),
        ("[a]\nprice = 1\nspead = 1", "unknown field `spead`.*a kind has price, profile"),
        ("[a]\nspeed = 1", "missing required field `price`"),
        ("[a]\nprice = 1\nprofile = 'h200'", "none of 8b-1xh100"),
        ("[a", "not a TOML file"),
        ("\n".join(f"[k{n}]\nprice = 1" for n in range(9)), "9 kinds; give 1 to 4"),
    ],
)
def test_a_file_that_names_no_kinds_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kinds(tmp_path, text)


def test_nothing_is_learned_of_a_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'learned' needs a log"):
        kinds(tmp_path, "[a]\nprice = 1", learned=False)
    with pytest.raises(ConfigError, match="No such file"):
        read_kinds(tmp_path / "none.toml", BASE, learned=True)
