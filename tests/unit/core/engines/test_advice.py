import pytest

from kvmesh.core.engines.advice import (
    how_to_cache,
    how_to_enlarge_blocks,
    how_to_publish,
    how_to_report_cached,
    who_returns_ids,
    whose_events,
)
from kvmesh.core.engines.engine import Engine, Words
from kvmesh.core.engines.sglang.engine import SGLANG
from kvmesh.core.engines.vllm.engine import VLLM


@pytest.fixture(autouse=True)
def three_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Engine(name="odd", title="Odd", words=Words(publish="--events"))
    kinds = {one.name: one for one in (VLLM, SGLANG, odd)}
    monkeypatch.setattr("kvmesh.core.engines.advice.ENGINES", kinds)


def test_an_option_is_told_once_for_the_kinds_that_share_it() -> None:
    assert how_to_publish() == "vLLM and SGLang: --kv-events-config, Odd: --events"


def test_each_kind_is_told_its_own_options_and_none_that_has_none() -> None:
    assert how_to_cache() == (
        "start it with --enable-prefix-caching (SGLang: without --disable-radix-cache)"
    )
    assert how_to_enlarge_blocks() == "start SGLang with --page-size 16 or more"
    assert how_to_report_cached() == (
        "vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report"
    )
    assert who_returns_ids() == "vLLM 0.10.2 or SGLang 0.5.22"
    assert whose_events() == "vLLM's or SGLang's or Odd's"
