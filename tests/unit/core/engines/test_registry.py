from typing import get_args, get_type_hints

import msgspec
import pytest

from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch, decoder_of
from kvmesh.core.engines.registry import (
    ENGINES,
    UNKNOWN,
    EngineKind,
    connector_of,
    connectors,
    engine_of,
    needs_naming,
)
from kvmesh.settings.features import ConnectorSettings
from kvmesh_lab.mocker.settings import MockerSettings


def test_every_kind_has_a_name_that_settings_know() -> None:
    assert get_args(EngineKind) == (*ENGINES, UNKNOWN.name)


def test_what_no_kind_is_called_is_served_as_unknown() -> None:
    assert [engine_of(name) for name in ("", "odd", UNKNOWN.name)] == [UNKNOWN] * 3
    assert decoder_of("") is decode_engine_batch


def test_an_unknown_kind_is_asked_for_slots_alone() -> None:
    assert (list(UNKNOWN.recognise("h")), list(UNKNOWN.identify())) == (["/props"], [])


@pytest.mark.parametrize("kind", ["", *ENGINES])
def test_a_worker_with_a_port_to_meet_at_is_met_and_any_other_asked_first(kind: str) -> None:
    assert connector_of(kind, 8998) is connectors()["bootstrap"]
    assert connector_of(kind, 0) is connectors()["nixl"]


def test_settings_and_the_mocker_know_every_connector() -> None:
    known = ("auto", *connectors())

    assert get_args(get_type_hints(ConnectorSettings)["kv_connector"]) == known
    assert get_args(get_type_hints(MockerSettings)["kv_connector"]) == known


@pytest.mark.parametrize("kind", ["", "vllm"])
def test_kinds_that_are_as_any_other_to_a_router_are_not_named(kind: str) -> None:
    assert not needs_naming(kind)


def test_a_kind_that_is_reached_in_its_own_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = msgspec.structs.replace(connectors()["nixl"], name="own")
    kinds = {
        **ENGINES,
        "odd": Engine(name="odd", title="Odd", connectors=(own,)),
        "ranked": Engine(name="ranked", title="Ranked", rank_headers=lambda _: ()),
    }
    monkeypatch.setattr("kvmesh.core.engines.registry.ENGINES", kinds)

    assert needs_naming("odd")
    assert needs_naming("ranked")
    assert connector_of("odd", 0) is own
    assert connector_of("", 0) is not own


@pytest.mark.parametrize("name", ENGINES)
def test_an_answer_nested_too_deeply_tells_nothing(name: str) -> None:
    deep = b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"
    engine = ENGINES[name]

    assert engine.prompt_ids is None or engine.prompt_ids.read(deep) is None
    for way in engine.connectors:
        assert way.answers is None or way.answers(deep) is None
        assert way.engine_ids is None or way.engine_ids(deep) == {}


def test_a_rank_is_named_in_a_header() -> None:
    assert engine_of("").rank_headers(3) == ((b"x-data-parallel-rank", b"3"),)
