from typing import get_args

import msgspec
import pytest

from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.handshake import Rendezvous, Transfer
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch, decoder_of
from kvmesh.core.engines.registry import (
    ENGINES,
    UNKNOWN,
    EngineKind,
    engine_of,
    handshake_of,
    needs_naming,
)


def test_every_kind_has_a_name_that_settings_know() -> None:
    assert get_args(EngineKind) == (*ENGINES, UNKNOWN.name)


def test_a_rank_is_named_in_a_header() -> None:
    assert engine_of("").rank_headers(3) == ((b"x-data-parallel-rank", b"3"),)


def test_what_no_kind_is_called_is_served_as_unknown() -> None:
    assert [engine_of(name) for name in ("", "odd", UNKNOWN.name)] == [UNKNOWN] * 3
    assert decoder_of("") is decode_engine_batch


def test_an_unknown_kind_is_asked_nothing() -> None:
    assert list(UNKNOWN.recognise("h")) == list(UNKNOWN.identify()) == []


@pytest.mark.parametrize("kind", ["", *ENGINES])
def test_a_worker_with_a_port_to_meet_at_is_met_and_any_other_asked_first(kind: str) -> None:
    assert isinstance(handshake_of(kind, 8998), Rendezvous)
    assert isinstance(handshake_of(kind, 0), Transfer)


@pytest.mark.parametrize("kind", ["", "vllm", "sglang"])
def test_kinds_that_routers_of_earlier_versions_served_are_not_named(kind: str) -> None:
    assert not needs_naming(kind)


def test_a_kind_that_is_reached_in_its_own_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Transfer(bytes, msgspec.Raw, lambda body, _: body)
    kinds = {
        **ENGINES,
        "odd": Engine(name="odd", title="Odd", handshake=own),
        "ranked": Engine(name="ranked", title="Ranked", rank_headers=lambda _: ()),
    }
    monkeypatch.setattr("kvmesh.core.engines.registry.ENGINES", kinds)

    assert needs_naming("odd")
    assert needs_naming("ranked")
    assert handshake_of("odd", 0) is own
    assert handshake_of("", 0) is not own
