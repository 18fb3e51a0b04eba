"""Which URLs requests may be sent to, where others name them: heartbeats, discovery, DNS."""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from kvmesh.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

FORMS: Final = "a CIDR, an address, a host name, *.domain, each with :PORT or :LOW-HIGH, or any"
LAST_PORT: Final = 65535

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_METADATA_NAMES: Final = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "instance-data",
        "metadata.tencentyun.com",
    }
)
_METADATA: Final = frozenset(
    map(
        ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Besides link-local ones. Source: the manuals of Alibaba Cloud, Azure, Oracle, AWS, Google."""

_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_LOOPBACK: Final = "loopback, and members may be on other machines: NATS is"
_NUMBER: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
_HOST: Final = re.compile(r"[a-z0-9_.*?-]+")


class Place(msgspec.Struct, frozen=True):
    """One entry of the list: a `network` or else a glob of host `name`s, and its ports."""

    network: Network | None
    name: str
    ports: range

    def has_address(self, address: Address, port: int) -> bool:
        """Return whether an address is in the network."""
        network = self.network
        if network is None or address.version != network.version:
            return False
        return address in network and port in self.ports

    def has_name(self, host: str, port: int) -> bool:
        """Return whether a host name is meant."""
        return self.network is None and fnmatchcase(host, self.name) and port in self.ports


class UrlRules(msgspec.Struct, frozen=True):
    """Judges URLs, and the addresses their hosts turn out to have.

    `own` are hosts of this process' own configuration, always admitted. Without `places` all but
    special addresses (link-local, metadata services of clouds, multicast) are. `apart`: members run
    on other machines, whose loopback addresses would be this machine's here: they are special, too.
    """

    places: tuple[Place, ...] = ()
    own: frozenset[str] = frozenset()
    anything: bool = False
    apart: bool = False

    def why_not(self, url: str) -> str:
        """Return why nothing may be sent to `http[s]://host[:port]`; "" when it may."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            return f"it is no URL: {error}"
        if wrong := _malformed(url, parts):
            return wrong
        host = str(parts.hostname).removesuffix(".")
        if host in self.own:
            return ""
        port = port or _DEFAULT_PORTS[parts.scheme]
        try:
            address = ip_address(host)
        except ValueError:
            return self._why_not_name(host, port)
        return self._why_not_address(address, host, port)

    def why_not_peer(self, host: str, port: int, peer: str) -> str:
        """Return why the host, whose address is `peer`, may be sent nothing; "" when it may."""
        host = host.removesuffix(".")
        return "" if host in self.own else self._why_not_address(ip_address(peer), host, port)

    def _why_not_name(self, host: str, port: int) -> str:
        """Judge a name; where networks are listed, its address is judged when it is known."""
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return f"{host} is an address in a form that hides it: write it in four decimals"
        if self.anything or any(place.has_name(host, port) for place in self.places):
            return ""
        if host in _METADATA_NAMES:
            return f"{host} is a cloud's metadata service"
        if self.apart and (host == "localhost" or host.endswith(".localhost")):
            return f"{host} is {_LOOPBACK}"
        waits = any(place.network is not None and port in place.ports for place in self.places)
        return "" if waits or not self.places else f"{host}:{port} is not listed"

    def _why_not_address(self, address: Address, host: str, port: int) -> str:
        plain = _embedded(address)
        if self.anything or any(place.has_address(plain, port) for place in self.places):
            return ""
        if special := _special(plain):
            return f"{address} is {special}"
        if self.apart and plain.is_loopback:
            return f"{address} is {_LOOPBACK}"
        listed = any(place.has_name(host, port) for place in self.places)
        return "" if listed or not self.places else f"{address}, port {port}, is not listed"


def _malformed(url: str, parts: SplitResult) -> str:
    """Return what makes a URL none of a worker, however it is meant."""
    if parts.scheme not in _DEFAULT_PORTS or not (parts.hostname or "").strip("."):
        return "it is not of the form http://host:port"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "it holds characters that no URL has"
    if "@" in parts.netloc:
        return "it holds a user name"
    if parts.path.strip("/") or parts.query or parts.fragment:
        return "it names more than scheme, host and port"
    return "there is no port 0" if parts.port == 0 else ""


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _special(address: Address) -> str:
    if address.is_link_local:
        return "link-local, where clouds keep credentials"
    if address in _METADATA:
        return "a cloud's metadata service"
    odd = address.is_reserved and not address.is_loopback
    if address.is_unspecified or address.is_multicast or odd or address in _THIS_NETWORK:
        return "no address of one host"
    return ""


def parse_url_rules(
    texts: Sequence[str], own_urls: Collection[str] = (), *, apart: bool = False
) -> UrlRules:
    """Return the rules of --upstream-allow, see `FORMS`. Raises `ConfigError` naming the value."""
    own = frozenset(filter(None, (_host_of(url) for url in own_urls)))
    places = tuple(_parse_place(text.strip().lower()) for text in texts if text.strip() != "any")
    return UrlRules(places, own, anything=len(places) < len(texts), apart=apart)


def is_remote(servers: str) -> bool:
    """Return whether servers, URLs or addresses with commas between them, are not all on loopback:
    then those who meet there run on several machines. "": nobody meets.
    """
    named = [one.strip() for one in servers.split(",") if one.strip()]
    hosts = [_host_of(one if "://" in one else f"//{one}") or "" for one in named]
    return not all(map(_is_loopback, hosts))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_of(url: str) -> str | None:
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return None


def _parse_place(text: str) -> Place:
    where = f"--upstream-allow {text!r}"
    if text.startswith("["):
        host, bracket, ports = text[1:].partition("]")
        wrong = not bracket or (ports and not ports.startswith(":"))
        if wrong:
            raise ConfigError(f"{where}: write [CIDR]:PORT")
        ports = ports[1:]
    elif text.count(":") > 1:
        host, ports = text, ""
    else:
        host, _, ports = text.partition(":")
    span = _parse_ports(ports, where)
    try:
        return Place(ip_network(host), "", span)
    except ValueError as error:
        if "/" in host or not _HOST.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
            raise ConfigError(f"{where}: {error}; write {FORMS}") from error
    return Place(None, host, span)


def _parse_ports(text: str, where: str) -> range:
    if not text:
        return range(1, LAST_PORT + 1)
    low, dash, high = text.partition("-")
    bounds = (low, high if dash else low)
    if not all(one.isascii() and one.isdigit() for one in bounds):
        raise ConfigError(f"{where}: {text!r} is no port; write {FORMS}")
    first, last = map(int, bounds)
    if not 1 <= first <= last <= LAST_PORT:
        raise ConfigError(f"{where}: ports are 1 to {LAST_PORT}, the lower one first")
    return range(first, last + 1)
