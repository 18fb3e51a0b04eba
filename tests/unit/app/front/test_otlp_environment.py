"""What OpenTelemetry's variables say."""

from collections.abc import Mapping

import pytest

from kvmesh.app.front.otlp_collector import Collector
from kvmesh.app.front.otlp_environment import (
    ExportBounds,
    Sampling,
    collector_options,
    export_bounds,
    find_endpoint,
    read_sampling,
    resource_of,
)
from kvmesh.errors import ConfigError

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
WHOLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("flag", "variables", "url"),
    [
        ("", {}, ""),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces/", {}, "http://c:4318/v1/traces"),
        ("", {BASE: "https://c/otel/"}, "https://c/otel/v1/traces"),
        ("", {BASE: "http://c", WHOLE: "http://d/own"}, "http://d/own"),
        ("http://flag", {BASE: "http://c", WHOLE: "http://d"}, "http://flag/v1/traces"),
        ("http://flag", {"OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_the_endpoint_is_the_flags_else_the_variables(
    flag: str, variables: Mapping[str, str], url: str
) -> None:
    assert find_endpoint(flag, variables) == url


def test_what_is_no_url_is_named() -> None:
    with pytest.raises(ConfigError, match="--otlp-endpoint 'c:4317'"):
        find_endpoint("c:4317", {})
    with pytest.raises(ConfigError, match="ENDPOINT 'grpc://c'"):
        find_endpoint("", {BASE: "grpc://c"})


def test_headers_and_files_of_traces_go_before_those_of_all_signals() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "Authorization=Basic%20eA==, x-b = 2 ,,nothing",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2.5",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
    }

    options = collector_options("http://c/v1/traces", variables)

    assert options.headers == (("authorization", "Basic eA=="), ("x-b", "2"), ("nothing", ""))
    assert (options.timeout_s, options.compression, options.ca_file) == (2.5, "gzip", "/ca.pem")


@pytest.mark.parametrize(
    ("name", "value"), [("COMPRESSION", "zstd"), ("PROTOCOL", "grpc"), ("PROTOCOL", "http/json")]
)
def test_what_is_not_spoken_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value):
        collector_options("http://c", {f"OTEL_EXPORTER_OTLP_{name}": value})


@pytest.mark.parametrize("url", ["http://", "http://c:99999/v1/traces", "ftp://c"])
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write http://host:4318"):
        Collector(collector_options(url, {}))


def test_a_header_that_would_begin_another_line_is_refused() -> None:
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "a=b%0d%0aHost: evil"}

    with pytest.raises(ConfigError, match="'a' is no header"):
        Collector(collector_options("http://c", variables))


def test_a_certificate_that_is_missing_is_named() -> None:
    variables = {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such/file.pem"}

    with pytest.raises(ConfigError, match=r"/no/such/file\.pem"):
        Collector(collector_options("https://c", variables))


@pytest.mark.parametrize(
    ("share", "sampler", "ratio", "sampling"),
    [
        (None, "", "", Sampling()),
        (0.25, "always_off", "", Sampling(0.25)),
        (None, "always_on", "", Sampling(1.0, by_share_alone=True)),
        (None, "always_off", "", Sampling(0.0, by_share_alone=True)),
        (None, "traceidratio", "0.1", Sampling(0.1, by_share_alone=True)),
        (None, "parentbased_traceidratio", "0.1", Sampling(0.1)),
        (None, "parentbased_traceidratio", "7", Sampling(1.0)),
        (None, "parentbased_always_off", "0.1", Sampling(0.0)),
        (None, "jaeger_remote", "0.1", Sampling()),
    ],
)
def test_the_share_is_the_flags_else_the_samplers(
    share: float | None, sampler: str, ratio: str, sampling: Sampling
) -> None:
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": ratio}

    assert read_sampling(share, variables) == sampling


def test_bounds_are_the_variables_within_reason() -> None:
    many = {"OTEL_BSP_MAX_QUEUE_SIZE": "99999999", "OTEL_BSP_SCHEDULE_DELAY": "250"}

    assert export_bounds({}) == ExportBounds()
    assert export_bounds(many) == ExportBounds(queue=1 << 16, delay_s=0.25)
    assert export_bounds({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}) == ExportBounds()


def test_an_operator_names_the_service() -> None:
    variables = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=a,zone=b%2Cc", "OTEL_SERVICE_NAME": "d"}

    assert dict(resource_of("router", "1.0", {}))["service.name"] == "kvmesh-router"
    assert dict(resource_of("router", "1.0", variables)) == {
        "service.name": "d",
        "service.version": "1.0",
        "zone": "b,c",
    }


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, ""),
        ({"http_proxy": "proxy:3128"}, "http://proxy:3128"),
        ({"http_proxy": "http://u:p@proxy:3128", "no_proxy": "c"}, ""),
    ],
)
def test_the_usual_proxies_count(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxy: str
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert collector_options("http://c/v1/traces", {}).proxy == proxy
