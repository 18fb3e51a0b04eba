"""Envoy's bootstrap as data: a listener whose requests go where endpoint pickers say.

Source: Envoy 1.40, api/envoy/config/bootstrap/v3 and the types named in `@type`.
"""

import ipaddress
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvmesh.app.picker.envoy_options import Address, BodyMode, GatewayOptions

Json = dict[str, object]

LISTENER, ENGINES, PICKERS = "gateway", "engines", "pickers"
DESTINATION = "x-gateway-destination-endpoint"
LB, SUBSET_HINT = "envoy.lb", "envoy.lb.subset_hint"
OF_THE_GATEWAY = (DESTINATION, f"{DESTINATION}-subset", f"{DESTINATION}-served")
"""Headers that no client may send."""

MANY = 1_000_000
IDLE_S = 3600.0
CONNECT_S = 2.0
HEALTH_INTERVAL_S = 1.0
HEALTH_TIMEOUT_S = 2.0
UNHEALTHY_INTERVAL_S = 0.25
PICKER_RETRIES = 2
KEEPALIVE_S = 3.0
EJECTION_S = 1.0
LONGEST_EJECTION_S = 5.0

TYPES = "type.googleapis.com/envoy"
FILTERS = f"{TYPES}.extensions.filters"
POLICIES = "envoy.load_balancing_policies"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def bootstrap(options: GatewayOptions) -> Json:
    """Return the whole configuration, for `envoy --config-path` as JSON."""
    return {
        "node": {"id": "kvmesh-gateway", "cluster": "kvmesh-gateway"},
        "admin": {"address": socket_address(options.admin)},
        "static_resources": {
            "listeners": [listener(options)],
            "clusters": [engines(options), pickers(options)],
        },
    }


def encode(options: GatewayOptions) -> bytes:
    """Return the configuration as JSON, one setting a line."""
    return msgspec.json.format(msgspec.json.encode(bootstrap(options)), indent=2)


def listener(options: GatewayOptions) -> Json:
    """Return the port clients connect to. Without `enable_reuse_port`, one in use is refused."""
    manager: Json = {
        "@type": f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": LISTENER,
        "codec_type": "AUTO",
        "stream_idle_timeout": seconds(IDLE_S),
        "http_protocol_options": {"enable_trailers": options.http1_trailers},
        "route_config": {
            "name": LISTENER,
            "virtual_hosts": [{"name": LISTENER, "domains": ["*"], "routes": [route(options)]}],
        },
        "http_filters": http_filters(options),
    }
    if options.access_log is not None:
        manager["access_log"] = [access_log(options.access_log)]
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    port: Json = {
        "name": LISTENER,
        "address": socket_address(options.listen),
        "enable_reuse_port": False,
        "filter_chains": [{"filters": [network]}],
    }
    if options.request_body == "BUFFERED":
        port["per_connection_buffer_limit_bytes"] = options.buffer_bytes
    return port


def route(options: GatewayOptions) -> Json:
    """Return the only route: everything to the engines, failed attempts to the alternatives."""
    action: Json = {"cluster": ENGINES, "timeout": "0s"}
    if options.retries and options.destination == "override_host":
        action["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": options.retries,
        }
    return {"match": {"prefix": "/"}, "route": action}


def http_filters(options: GatewayOptions) -> list[Json]:
    """Return what a request passes: the client's headers dropped, the picker asked, then sent."""
    chain: list[Json] = []
    if options.stripped:
        removed = [{"remove": name} for name in OF_THE_GATEWAY]
        mutation: Json = {"mutations": {"request_mutations": removed}}
        chain.append(http_filter("header_mutation", "HeaderMutation", mutation))
    if options.subset is not None:
        hint = {OF_THE_GATEWAY[1]: list(options.subset)}
        entry = {"metadata_namespace": SUBSET_HINT, "value": hint}
        chain.append(http_filter("set_metadata", "Config", {"metadata": [entry]}))
    chain.append(http_filter("ext_proc", "ExternalProcessor", external_processor(options)))
    chain.append(http_filter("router", "Router", {}))
    return chain


def external_processor(options: GatewayOptions) -> Json:
    """Return how the pickers are asked."""
    after_response = trailers(options.response_body)
    return {
        "grpc_service": {"envoy_grpc": {"cluster_name": PICKERS}, "retry_policy": ask_again()},
        "failure_mode_allow": options.fail_open,
        "message_timeout": seconds(options.message_timeout_s),
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": options.request_body,
            "request_trailer_mode": trailers(options.request_body),
            "response_header_mode": "SEND" if options.response_headers else "SKIP",
            "response_body_mode": options.response_body,
            "response_trailer_mode": "SEND" if options.response_trailers else after_response,
        },
        "response_attributes": ["response.code_details", "response.flags"],
        "metadata_options": {
            "forwarding_namespaces": {"untyped": [LB, SUBSET_HINT]},
            "receiving_namespaces": {"untyped": [LB]},
        },
    }


def ask_again() -> Json:
    """Return when another picker is asked: while the one asked has not begun to answer."""
    others = "envoy.retry_host_predicates.previous_hosts"
    kind = f"{TYPES}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "retry_on": "connect-failure,refused-stream,reset,unavailable",
        "num_retries": PICKER_RETRIES,
        "retry_host_predicate": [{"name": others, "typed_config": {"@type": kind}}],
        "host_selection_retry_max_attempts": 5,
    }


def trailers(body: BodyMode) -> str:
    """Return whether trailers are shown: with FULL_DUPLEX_STREAMED they must be."""
    return "SEND" if body == "FULL_DUPLEX_STREAMED" else "SKIP"


def engines(options: GatewayOptions) -> Json:
    """Return the cluster that requests go to, as the pick says."""
    cluster: Json = {
        "name": ENGINES,
        "connect_timeout": seconds(CONNECT_S),
        "circuit_breakers": unbounded(),
    }
    if options.http1_trailers:
        plain: Json = {"http_protocol_options": {"enable_trailers": True}}
        cluster["typed_extension_protocol_options"] = {HTTP_OPTIONS: upstream(plain)}
    if options.destination == "original_dst":
        return cluster | original_dst(options)
    return (
        cluster
        | members(ENGINES, options.endpoints)
        | {"load_balancing_policy": override_host(options)}
    )


def original_dst(options: GatewayOptions) -> Json:
    """Return what makes a cluster send to whatever address the pick names."""
    by_header = {"use_http_header": True, "http_header_name": DESTINATION}
    by_metadata = {"metadata_key": {"key": LB, "path": [{"key": DESTINATION}]}}
    return {
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": by_header if options.pick_source == "header" else by_metadata,
    }


def override_host(options: GatewayOptions) -> Json:
    """Return the policy that obeys the pick, tells who served, and is round robin without one."""
    by_metadata = {"metadata": {"key": LB, "path": [{"key": DESTINATION}]}}
    source = {"header": DESTINATION} if options.pick_source == "header" else by_metadata
    served = {"key": LB, "path": [{"key": OF_THE_GATEWAY[2]}]}
    without = policy("round_robin", "RoundRobin", {})
    obeyed: Json = {
        "override_host_sources": [source],
        "selected_host_key": served,
        "fallback_policy": without,
    }
    return policy("override_host", "OverrideHost", obeyed)


def pickers(options: GatewayOptions) -> Json:
    """Return the cluster of the pickers: gRPC, asked for their health, left out when they fail."""
    # A frozen picker is found by no timeout of ext_proc in FULL_DUPLEX_STREAMED.
    ping = {"interval": seconds(KEEPALIVE_S), "timeout": seconds(KEEPALIVE_S)}
    protocol = upstream({"http2_protocol_options": {"connection_keepalive": ping}})
    check: Json = {
        "timeout": seconds(HEALTH_TIMEOUT_S),
        "interval": seconds(HEALTH_INTERVAL_S),
        "no_traffic_interval": seconds(HEALTH_INTERVAL_S),
        "unhealthy_interval": seconds(UNHEALTHY_INTERVAL_S),
        # A busy picker answers late now and then; requests of a dead one are asked again meanwhile.
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {},
    }
    cluster: Json = {
        "name": PICKERS,
        "connect_timeout": seconds(CONNECT_S),
        # Not the one with the fewest streams: a dead picker has none.
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": unbounded(),
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [check],
        "outlier_detection": outlier_detection(),
        "typed_extension_protocol_options": {HTTP_OPTIONS: protocol},
    }
    if options.picker_ca is not None:
        cluster["transport_socket"] = tls(options.picker_ca)
    return cluster | members(PICKERS, options.pickers)


def upstream(protocol: Json) -> Json:
    """Return with which version of HTTP a cluster's members are spoken to."""
    kind = f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {"@type": kind, "explicit_http_config": protocol}


def outlier_detection() -> Json:
    """Return when a picker that fails is left out between two health checks."""
    return {
        "consecutive_5xx": 3,
        "interval": seconds(HEALTH_INTERVAL_S),
        "base_ejection_time": seconds(EJECTION_S),
        "max_ejection_time": seconds(LONGEST_EJECTION_S),
        "max_ejection_percent": 50,
    }


def tls(ca: Path) -> Json:
    """Return TLS towards servers whose certificate `ca` signed."""
    context = {
        "alpn_protocols": ["h2"],
        "validation_context": {"trusted_ca": {"filename": str(ca)}},
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": context,
        },
    }


def members(name: str, addresses: Iterable[Address]) -> Json:
    """Return a cluster's type and members: STRICT_DNS where one has a name in place of an IP."""
    listed = tuple(addresses)
    kind = "STATIC" if all(map(is_ip, listed)) else "STRICT_DNS"
    return {"type": kind, "load_assignment": assignment(name, listed)}


def assignment(name: str, addresses: Iterable[Address]) -> Json:
    """Return a `ClusterLoadAssignment`."""
    listed = [{"endpoint": {"address": socket_address(one)}} for one in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": listed}]}


def is_ip(address: Address) -> bool:
    """Return whether its host is an IP address, not a name."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True


def socket_address(address: Address) -> Json:
    """Return an `Address` of Envoy's."""
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def unbounded() -> Json:
    """Return circuit breakers that never open: a stream lasts minutes, the default is 1,024."""
    most = {"max_connections": MANY, "max_pending_requests": MANY, "max_requests": MANY}
    return {"thresholds": [{**most, "max_retries": MANY}]}


def http_filter(name: str, kind: str, config: Json) -> Json:
    """Return an HTTP filter of the chain."""
    typed = {"@type": f"{FILTERS}.http.{name}.v3.{kind}", **config}
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed}


def policy(name: str, kind: str, config: Json) -> Json:
    """Return a load balancing policy."""
    typed = {"@type": f"{TYPES}.extensions.load_balancing_policies.{name}.v3.{kind}", **config}
    extension = {"name": f"{POLICIES}.{name}", "typed_config": typed}
    return {"policies": [{"typed_extension_config": extension}]}


def access_log(path: Path) -> Json:
    """Return a log with a line of JSON for each request: status, why, and who served."""
    line = {
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "upstream": "%UPSTREAM_HOST%",
        "sent": "%BYTES_SENT%",
    }
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": f"{TYPES}.extensions.access_loggers.file.v3.FileAccessLog",
            "path": str(path),
            "log_format": {"json_format": line},
        },
    }


def seconds(number: float) -> str:
    """Return a `Duration`."""
    return f"{number:g}s"
