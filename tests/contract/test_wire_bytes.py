"""Bytes of every format on record: what a version wrote is read by all that come after it.

Here the two sides are a file of tests/fixtures/wire and this checkout. A test that fails says that
a fleet of both versions would not understand itself: see tests/fixtures/wire/README.md.
"""

from pathlib import Path

import msgspec
import pytest

from kvmesh.compiled import CORE, NATIVE
from kvmesh.core.blocks.hash_chain import compiled_chain_tokens, pure_chain, pure_chain_tokens
from kvmesh.core.index.table import BlockTable
from tests.contract.wire.cases import CASES

V1 = Path(__file__).parents[1] / "fixtures/wire/v1"
GROWING = ("worker_heartbeat", "router_heartbeat", "command_", "reply_", "manifest")
"""Maps by field name: a version may add fields, others pass over them."""


def recorded() -> list[str]:
    return sorted(path.stem for path in V1.iterdir())


@pytest.fixture(params=["pure", "native"])
def either_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native" and NATIVE is None:
        pytest.skip(CORE)
    quick = NATIVE if request.param == "native" else None
    tokens = compiled_chain_tokens(quick.chain_tokens) if quick else pure_chain_tokens
    for name, part in (
        ("index.implementation.TABLE", quick.Table if quick else BlockTable),
        ("blocks.hashing.chain", quick.chain if quick else pure_chain),
        ("blocks.hashing.chain_tokens", tokens),
    ):
        monkeypatch.setattr(f"kvmesh.core.{name}", part)


def test_every_format_is_on_record() -> None:
    assert recorded() == sorted(CASES)


@pytest.mark.usefixtures("either_core")
@pytest.mark.parametrize("name", recorded())
def test_what_version_1_wrote_is_read_as_it_was_meant(name: str) -> None:
    case = CASES[name]

    assert case.read((V1 / f"{name}.bin").read_bytes()) == case.value


@pytest.mark.usefixtures("either_core")
@pytest.mark.parametrize("name", [one for one in recorded() if not one.startswith(GROWING)])
def test_version_1_is_still_written_to_the_byte(name: str) -> None:
    assert CASES[name].write() == (V1 / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", [one for one in recorded() if one.startswith(GROWING)])
def test_maps_keep_every_field_of_version_1_in_its_place(name: str) -> None:
    """An older process finds in a newer one's map all that it knows, of the same value."""
    decoder = msgspec.json if name == "manifest" else msgspec.msgpack
    before: dict[str, object] = decoder.decode((V1 / f"{name}.bin").read_bytes())
    now: dict[str, object] = decoder.decode(CASES[name].write())

    assert {key: now.get(key) for key in before} == before


@pytest.mark.parametrize("name", [one for one in recorded() if one.startswith(GROWING)])
def test_fields_that_a_later_version_adds_are_passed_over(name: str) -> None:
    decoder = msgspec.json if name == "manifest" else msgspec.msgpack
    told: dict[str, object] = decoder.decode((V1 / f"{name}.bin").read_bytes())
    later = decoder.encode(told | {"a_later_field": [1, {"of": "another shape"}]})

    assert CASES[name].read(later) == CASES[name].value
