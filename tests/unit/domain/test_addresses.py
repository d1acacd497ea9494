"""Which addresses are public."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.web.addresses import BLOCKS, EVERYWHERE, Address, Block, Opening, obstacle, read_opening

HOME = ip_network("10.0.0.0/8")


def inside(block: Block) -> st.SearchStrategy[Any]:
    return st.ip_addresses(network=block.network)


V4_BLOCKS = [block for block in BLOCKS if block.network.version == 4]
ANY_BLOCKED = st.sampled_from(BLOCKS).flatmap(inside)
ANY_BLOCKED_V4 = st.sampled_from(V4_BLOCKS).flatmap(inside)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1", "a loopback address"),
        ("127.255.255.254", "a loopback address"),
        ("10.1.2.3", "a private network"),
        ("172.31.255.255", "a private network"),
        ("192.168.0.1", "a private network"),
        ("100.64.0.1", "a provider's shared network"),
        ("100.100.100.200", "a cloud's metadata service"),
        ("169.254.169.254", "a cloud's metadata service"),
        ("168.63.129.16", "a cloud's metadata service"),
        ("192.0.0.192", "a cloud's metadata service"),
        ("169.254.1.1", "a link-local address"),
        ("0.0.0.0", "the unspecified address"),
        ("0.1.2.3", "the unspecified address"),
        ("224.0.0.1", "a multicast address"),
        ("255.255.255.255", "a reserved address"),
        ("250.0.0.1", "a reserved address"),
        ("198.19.255.255", "kept for benchmarks"),
        ("203.0.113.7", "kept for documentation"),
        ("192.88.99.1", "kept for protocols"),
        ("::1", "a loopback address"),
        ("::", "the unspecified address"),
        ("fd00:ec2::254", "a cloud's metadata service"),
        ("fd12::1", "a private network"),
        ("fe80::1", "a link-local address"),
        ("2606:4700::1%eth0", "an address with a zone"),
        ("fec0::1", "not a public address"),
        ("ff02::1", "a multicast address"),
        ("2001:db8::1", "kept for documentation"),
        ("2001:0:53aa:64c::1", "kept for protocols"),
        ("2002:7f00:1::", "kept for protocols"),
        ("2002:808:808::", "kept for protocols"),
        ("::127.0.0.1", "not a public address"),
        ("::ffff:0:127.0.0.1", "not a public address"),
        ("64:ff9b:1::7f00:1", "not a public address"),
        ("::ffff:169.254.169.254", "a cloud's metadata service"),
        ("64:ff9b::a9fe:a9fe", "a cloud's metadata service"),
        ("64:ff9b::10.0.0.1", "a private network"),
        ("8.8.8.8", ""),
        ("172.32.0.1", ""),
        ("100.128.0.1", ""),
        ("2606:4700::1111", ""),
        ("64:ff9b::8.8.8.8", ""),
        ("::ffff:8.8.8.8", ""),
    ],
)
def test_an_address_is_public_or_it_is_said_what_it_is(address: str, what: str) -> None:
    assert obstacle(ip_address(address)) == what


@given(ANY_BLOCKED)
def test_no_address_of_any_block_passes(address: Address) -> None:
    assert obstacle(address) != ""


@given(ANY_BLOCKED_V4, st.sampled_from(["::ffff:{}", "64:ff9b::{}", "::{}", "::ffff:0:{}", "64:ff9b:1::{}"]))
def test_no_way_of_carrying_it_in_ipv6_makes_an_address_public(address: IPv4Address, form: str) -> None:
    assert obstacle(ip_address(form.format(address))) != ""


@given(ANY_BLOCKED_V4)
def test_no_tunnel_leads_to_an_address(address: IPv4Address) -> None:
    by_6to4 = IPv6Address((0x2002 << 112) | (int(address) << 80))
    by_teredo = IPv6Address((0x2001_0000 << 96) | (0xFFFF_FFFF ^ int(address)))
    assert "" not in {obstacle(by_6to4), obstacle(by_teredo)}


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6) | st.ip_addresses(network="2000::/3"))
def test_what_passes_is_global_to_python_too(address: Address) -> None:
    assert obstacle(address) != "" or (address.is_global and not address.is_multicast)


@given(ANY_BLOCKED)
def test_opening_everything_opens_private_networks_only(address: Address) -> None:
    block = next(block for block in BLOCKS if address in block.network)
    assert obstacle(address, EVERYWHERE) == ("" if block.opens else block.what)


def test_opening_a_network_opens_nothing_beside_it() -> None:
    opening = read_opening(["10.0.0.0/8", "Wiki.Corp.", "192.168.1.7"])
    assert opening == Opening(hosts=frozenset({"wiki.corp"}), networks=(HOME, ip_network("192.168.1.7/32")))
    opened = opening.of("elsewhere.example")
    assert [obstacle(ip_address(text), opened) for text in ("10.9.9.9", "192.168.1.7", "192.168.1.8", "127.0.0.1")] == [
        "",
        "",
        "a private network",
        "a loopback address",
    ]
    assert obstacle(ip_address("127.0.0.1"), opening.of("wiki.corp")) == ""
    assert obstacle(ip_address("169.254.169.254"), opening.of("wiki.corp")) == "a cloud's metadata service"


@pytest.mark.parametrize(
    "entry", ["169.254.169.254", "169.254.0.0/16", "0.0.0.0/0", "8.8.8.0/24", "10.0.0.1/8", "http://wiki", "", "*.corp"]
)
def test_what_cannot_be_opened_is_refused_with_its_name(entry: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_opening([entry])
    assert (caught.value.context, repr(entry) in caught.value.message) == ({"field": "allowed_private"}, True)
