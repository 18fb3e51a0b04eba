"""OpenTelemetry's own variables: where spans go, how, and which.

Source: OpenTelemetry specification, "Environment Variable Specification" and "OTLP exporter";
timeouts are in seconds, as OpenTelemetry's SDK for Python reads them.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args
from urllib.parse import unquote, urlsplit

import msgspec

from kvmesh.app.front.otlp_messages import CollectorOptions
from kvmesh.bounds import MAX_SECONDS, real_number
from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger

PREFIX: Final = "OTEL_EXPORTER_OTLP_"
ENDPOINT: Final = f"{PREFIX}ENDPOINT"
TRACES: Final = "/v1/traces"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"

Compression = Literal["none", "gzip", "deflate"]
MOST_QUEUED: Final = 1 << 16


class ExportBounds(msgspec.Struct, frozen=True, kw_only=True):
    """`queue` spans wait at most; beyond it new ones are dropped and counted. They go in batches of
    `batch`, or each `delay_s`.
    """

    queue: int = 8192
    batch: int = 1024
    delay_s: float = 5.0


class Sampling(msgspec.Struct, frozen=True):
    """`share` of the traces that begin here are sampled; of those that a client began those that
    it samples, or with `by_share_alone` as many.
    """

    share: float = 1.0
    by_share_alone: bool = False


def find_endpoint(flag: str, variables: Mapping[str, str]) -> str:
    """Return the URL of a collector's traces; "" for none.

    Raises `ConfigError` for what is no URL of HTTP.
    """
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    whole = "" if flag else variables.get(f"{PREFIX}TRACES_ENDPOINT", "")
    base = flag or variables.get(ENDPOINT, "")
    if not (whole or base):
        return ""
    if not (whole or base).startswith(("http://", "https://")):
        name = f"--otlp-endpoint {flag!r}" if flag else f"${PREFIX}…ENDPOINT {whole or base!r}"
        raise ConfigError(f"{name}: write http://host:4318")
    return whole or base.rstrip("/").removesuffix(TRACES) + TRACES


def collector_options(url: str, variables: Mapping[str, str]) -> CollectorOptions:
    """Return how to speak to the collector at `url`. Raises `ConfigError`."""

    def read(name: str) -> str:
        return variables.get(f"{PREFIX}TRACES_{name}") or variables.get(f"{PREFIX}{name}", "")

    pairs = [one.partition("=") for one in read("HEADERS").split(",") if one.strip()]
    headers = ((unquote(name).strip().lower(), unquote(value).strip()) for name, _, value in pairs)
    protocol, compression = read("PROTOCOL") or "http/protobuf", read("COMPRESSION") or "none"
    if protocol != "http/protobuf":
        raise ConfigError(f"${PREFIX}PROTOCOL {protocol!r}: only http/protobuf is spoken")
    if compression not in get_args(Compression):
        raise ConfigError(f"${PREFIX}COMPRESSION {compression!r}: write gzip, deflate or none")
    return CollectorOptions(
        url=url,
        headers=tuple((name, value) for name, value in headers if name),
        timeout_s=_number(f"{PREFIX}TIMEOUT", read("TIMEOUT"), 0.01) or 10.0,
        compression=_compression(compression),
        ca_file=read("CERTIFICATE"),
        client_certificate=read("CLIENT_CERTIFICATE"),
        client_key=read("CLIENT_KEY"),
        proxy=_proxy(url),
    )


def export_bounds(variables: Mapping[str, str]) -> ExportBounds:
    """Return how many spans wait for how long."""

    def read(name: str) -> float | None:
        return _number(f"OTEL_BSP_{name}", variables.get(f"OTEL_BSP_{name}", ""), 1.0)

    usual = ExportBounds()
    delay_ms = read("SCHEDULE_DELAY")
    return ExportBounds(
        queue=min(int(read("MAX_QUEUE_SIZE") or usual.queue), MOST_QUEUED),
        batch=min(int(read("MAX_EXPORT_BATCH_SIZE") or usual.batch), MOST_QUEUED),
        delay_s=usual.delay_s if delay_ms is None else delay_ms / 1000.0,
    )


def read_sampling(share: float | None, variables: Mapping[str, str]) -> Sampling:
    """Return which requests are traced: `share` by the command line, else by the variables."""
    if share is not None:
        return Sampling(share)
    name = variables.get(SAMPLER, "").strip().lower()
    given = _number(f"{SAMPLER}_ARG", variables.get(f"{SAMPLER}_ARG", ""), 0.0, 1.0)
    ratio = 1.0 if given is None else given
    match name.removeprefix("parentbased_"):
        case "always_off":
            found = 0.0
        case "traceidratio":
            found = ratio
        case "always_on" | "":
            found = 1.0
        case _:
            get_logger().warning("unknown sampler, every request is traced", value=name)
            return Sampling()
    return Sampling(found, by_share_alone=bool(name) and not name.startswith("parentbased_"))


def resource_of(role: str, version: str, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the attributes of this process, those of the variables first."""
    pairs = [one.partition("=") for one in variables.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")]
    given = {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}
    if service := variables.get("OTEL_SERVICE_NAME", ""):
        given["service.name"] = service
    own = {"service.name": f"kvmesh-{role}", "service.version": version}
    return [*(own | given).items()]


def _compression(name: str) -> Compression:
    return "gzip" if name == "gzip" else "deflate" if name == "deflate" else "none"


def _number(name: str, text: str, least: float, most: float = MAX_SECONDS) -> float | None:
    """Return the number in a variable; None, and a warning, for what is none."""
    if not text:
        return None
    found = real_number(text.strip(), least, most)
    if found is None:
        get_logger().warning("a variable is ignored: no number within its range", name=name)
    return found


def _proxy(url: str) -> str:
    """Return the proxy that the usual variables name for a URL; "" for none."""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415  40 ms, where one traces

    parts = urlsplit(url)
    proxies = getproxies()
    if not parts.hostname or proxy_bypass(parts.hostname):
        return ""
    named = proxies.get(parts.scheme, proxies.get("all", ""))
    return named if not named or "://" in named else f"http://{named}"
