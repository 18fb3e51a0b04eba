import pytest

from kvmesh.errors import ConfigError
from kvmesh.settings.spellings import check_removed, join_loose, read_spellings, renamed


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("router --kv-events true", "router --kv-events=true"),
        ("router --kv-events False --seed 3", "router --kv-events=False --seed 3"),
        ("router --no-kv-events no", "router --no-kv-events=no"),
        ("router --kv-events --smooth yes", "router --kv-events --smooth=yes"),
        ("router --kv-events=true false", "router --kv-events=true false"),
        ("router true", "router true"),
        ("router --kv-events", "router --kv-events"),
        ("replay -- --kv-events true", "replay -- --kv-events true"),
        ("router --kv-events -- true", "router --kv-events -- true"),
        ("router --router-replica-sync --seed 3", "router --seed 3"),
        ("router --router-replica-sync=true", "router"),
        ("router --no-router-reset-states", "router"),
        ("router --router-reset-states false", "router"),
        ("router --track-active-blocks yes", "router"),
        ("router -- --router-reset-states", "router -- --router-reset-states"),
        ("router --router-snapshot-threshold 9 --bucket b", "router --bucket b"),
        ("router --router-snapshot-threshold=9 --bucket b", "router --bucket b"),
        ("router --worker kv-weight", "router --worker kv-weight"),
        ("router -- --kv-weight 2", "router -- --kv-weight 2"),
        ("replay --kv-weight 2", "replay --kv-weight 2"),
        ("", ""),
    ],
)
def test_a_line_is_read_as_it_was_meant(line: str, read: str) -> None:
    assert read_spellings(line.split()) == read.split()


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ("--no-track-active-blocks", "decode_weight=0"),
        ("--track-active-blocks false", "decode_weight=0"),
        ("--router-replica-sync no", "--bucket of its own"),
        ("--no-router-replica-sync", "--bucket of its own"),
        ("--router-reset-states", "Forget everything"),
        ("--no-router-reset-states=false", "Forget everything"),
    ],
)
def test_a_published_flag_without_a_meaning_here_is_rejected_with_what_to_do(
    flags: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=remedy) as error:
        read_spellings(["router", *flags.split()])

    assert str(error.value).startswith(flags.split(maxsplit=1)[0])


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("router --http-processes 2", "--http-processes: there is no .*; use more cores"),
        ("worker --nats-nkey-seed=w.nk", "--nats-nkey-seed: .* --nats-creds"),
        ("picker --no-tenant-isolation", "--no-tenant-isolation: .* --tenant-secret-file"),
        ("meta-router --otlp-sample 0.5", "--otlp-sample: .* OTEL_TRACES_SAMPLER"),
    ],
)
def test_a_removed_setting_is_rejected_with_what_to_do(line: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        read_spellings(line.split())


def test_a_setting_that_is_there_is_not_removed() -> None:
    check_removed("http-port", "router.toml: http-port")


def test_a_word_left_over_goes_to_the_switch_before_it() -> None:
    line = ["router", "--kv-events", "Maybe", "--seed", "3", "again"]

    joined = join_loose(line, ["Maybe", "again"])

    assert joined == ["router", "--kv-events=Maybe", "--seed", "3", "again"]


def test_an_old_name_is_found_in_flags_files_and_variables() -> None:
    tokens = ("mocker", "--port=1", "--model", "host")

    warnings = list(renamed("mocker", tokens, ["replay-port"], ["KVMESH_HOST", "PATH"]))

    assert [warning.partition(":")[0] for warning in warnings] == [
        "KVMESH_HOST",
        "--port",
        "replay-port",
    ]
    assert list(renamed("router", ["--port"], ["host"], [])) == []
