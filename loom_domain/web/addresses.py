"""The network addresses that web tools may access: public addresses, and addresses that a worker's settings allow.

By default, only addresses that are known to be public are allowed. An IPv6 address that contains an IPv4 address is
treated as that IPv4 address. Formats that contain an IPv4 address but aren't used for web pages (6to4, Teredo,
IPv4-compatible) are never allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final, TypeAlias

from loom.domain.core.errors import BadRequest, ToolValidationError
from loom.domain.web.urls import host_name

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A network with addresses that aren't public."""

    network: Network
    what: str
    opens: bool = False
    """Whether a worker's settings can allow the network. Private networks can be allowed, but the addresses of a
    cloud's metadata service, which provides credentials, cannot.
    """


def _blocks(what: str, *networks: str, opens: bool = False) -> tuple[Block, ...]:
    return tuple(Block(network=ip_network(network), what=what, opens=opens) for network in networks)


BLOCKS: Final = (
    # These networks come first because they are parts of networks that can be allowed.
    *_blocks(
        "a cloud's metadata service",
        *("169.254.169.254/32", "169.254.170.2/32", "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32"),
        *("fd00:ec2::254/128", "fd20:ce::254/128", "fd00:42::42/128"),
    ),
    *_blocks("a loopback address", "127.0.0.0/8", "::1/128", opens=True),
    *_blocks("a private network", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", opens=True),
    *_blocks("a provider's shared network", "100.64.0.0/10", opens=True),
    *_blocks("a link-local address", "169.254.0.0/16", "fe80::/10"),
    *_blocks("the unspecified address", "0.0.0.0/8", "::/128"),
    *_blocks("a multicast address", "224.0.0.0/4", "ff00::/8"),
    *_blocks("kept for documentation", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),
    *_blocks("kept for documentation", "2001:db8::/32", "3fff::/20"),
    *_blocks("kept for benchmarks", "198.18.0.0/15"),
    *_blocks("kept for protocols", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16"),
    *_blocks("a reserved address", "240.0.0.0/4"),
)
"""The known networks. The first match determines an address's kind."""

_GLOBAL: Final = IPv6Network("2000::/3")
"""The IPv6 range that is allocated for public use."""

_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""The NAT64 prefix, which an IPv6-only network uses to access IPv4. The resolvers of such a network return addresses
with this prefix for every site.
"""

EVERYWHERE: Final[tuple[Network, ...]] = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))


def obstacle(address: Address, opened: Sequence[Network] = ()) -> str:
    """Return the reason why a request to this address isn't allowed, or an empty string if it is."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return "an address with a zone"
        if (carried := _carried(address)) is not None:
            return obstacle(carried, opened)
    block = next((block for block in BLOCKS if address in block.network), None)
    if block is None:
        return "" if isinstance(address, IPv4Address) or address in _GLOBAL else "not a public address"
    is_opened = block.opens and any(address in network for network in opened)
    return "" if is_opened else block.what


def _carried(address: IPv6Address) -> IPv4Address | None:
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Non-public hosts that the settings allow, such as a company's wiki."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def of(self, host: str) -> tuple[Network, ...]:
        """Return the networks that are allowed for this host. If the settings name the host, every address that DNS
        returns for it is trusted.
        """
        return EVERYWHERE if host in self.hosts else self.networks


def read_opening(entries: Sequence[str]) -> Opening:
    """Parse host names, addresses and networks (`wiki.corp`, `10.0.0.7`, `10.0.0.0/8`). Raises BadRequest if one is
    invalid.
    """
    hosts: set[str] = set()
    networks: list[Network] = []
    for entry in entries:
        network = _network(entry)
        if network is None:
            hosts.add(_host(entry))
        elif any(block.opens and _within(network, block.network) for block in BLOCKS):
            networks.append(network)
        else:
            raise BadRequest(f"{entry!r} cannot be opened: name a part of a private network", field="allowed_private")
    return Opening(hosts=frozenset(hosts), networks=tuple(networks))


def _network(entry: str) -> Network | None:
    try:
        return ip_network(entry.strip())
    except ValueError:
        return None


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.network_address in outer and inner.prefixlen >= outer.prefixlen


def _host(entry: str) -> str:
    try:
        return host_name(entry.strip())
    except ToolValidationError as error:
        raise BadRequest(
            f"{entry!r} is neither a host name nor a network such as 10.0.0.0/8: {error.message}",
            field="allowed_private",
        ) from None
