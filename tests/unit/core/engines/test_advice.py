from kvmesh.core.engines.advice import how_to_publish


def test_the_option_for_events_is_told_once_for_the_kinds_that_share_it() -> None:
    assert how_to_publish() == "vLLM and SGLang: --kv-events-config"
