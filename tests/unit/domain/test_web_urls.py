"""One strict reading of URLs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import ToolValidationError
from loom.domain.web.urls import WebUrl, joined, web_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://example.com", WebUrl(scheme="https", host="example.com", port=443, target="/")),
        (" HTTP://Example.COM.:80/a?b=c#d ", WebUrl(scheme="http", host="example.com", port=80, target="/a?b=c")),
        ("https://example.com?q", WebUrl(scheme="https", host="example.com", port=443, target="/?q")),
        ("https://example.com:/x", WebUrl(scheme="https", host="example.com", port=443, target="/x")),
        ("http://bücher.example:8080/ä|%20", WebUrl(scheme="http", host="xn--bcher-kva.example", port=8080,
                                                   target="/%C3%A4%7C%20")),
        ("http://u\u0308ber.example/", WebUrl(scheme="http", host="xn--ber-goa.example", port=80, target="/")),
        ("http://8.8.8.8./", WebUrl(scheme="http", host="8.8.8.8", port=80, target="/")),
        ("http://[2606:4700:0:0::1111]:81/", WebUrl(scheme="http", host="2606:4700::1111", port=81, target="/")),
        ("http://a_b.example/'\"<>", WebUrl(scheme="http", host="a_b.example", port=80, target="/'%22%3C%3E")),
    ],
)  # fmt: skip
def test_a_url_is_read_into_the_parts_that_a_request_is_made_of(text: str, url: WebUrl) -> None:
    assert web_url(text) == url
    assert web_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("example.com", "does not begin with http"),
        ("//example.com/", "does not begin with http"),
        ("http:/example.com", "does not begin with http"),
        ("http:example.com", "does not begin with http"),
        ("file:///etc/passwd", "does not begin with http"),
        ("gopher://example.com/_x", "does not begin with http"),
        ("ftp://example.com/", "does not begin with http"),
        ("data:text/html,hello", "does not begin with http"),
        ("javascript:alert(1)", "does not begin with http"),
        ("hTTp\u017f://example.com", "does not begin with http"),
        ("http://", "not a host name"),
        ("http:///path", "not a host name"),
        ("http://.", "not a host name"),
        ("http://a..b/", "not a host name"),
        ("http://-a.example/", "not a host name"),
        ("http://exa%6dple.com/", "not a host name"),
        ("http://127.0.0.1%2f@example.com/", "user name"),
        ("http://user:secret@example.com/", "user name"),
        ("http://example.com@127.0.0.1/", "user name"),
        ("http://example.com\\@127.0.0.1/", "backslash"),
        ("http://example.com/\\evil", "backslash"),
        ("http://exam\tple.com/", "control character"),
        ("http://example.com/\r\nHost: x", "control character"),
        ("http://exa mple.com/", "space"),
        ("http://example.com\u200b/", "control character"),
        ("http://example.com:99999/", "no port 99999"),
        ("http://example.com:0/", "no port 0"),
        ("http://example.com:8o/", "not a host with a port"),
        ("http://example.com:８０/", "not a host with a port"),
        ("http://a:1:2/", "not a host with a port"),
        ("http://2130706433/", "odd spelling"),
        ("http://0x7f000001/", "odd spelling"),
        ("http://017700000001/", "odd spelling"),
        ("http://0x7f.1/", "odd spelling"),
        ("http://127.1/", "odd spelling"),
        ("http://0177.0.0.1/", "odd spelling"),
        ("http://127.0.0.0x1/", "odd spelling"),
        ("http://127.0.0.01/", "odd spelling"),
        ("http://0/", "odd spelling"),
        ("http://example.0x/", "odd spelling"),
        ("http://１２７.0.0.1/", "more than one name"),
        ("http://127。0。0。1/", "more than one name"),
        ("http://localhost。/", "more than one name"),
        ("http://ⓛocalhost/", "more than one name"),
        ("http://faß.example/", "more than one name"),
        ("http://①②⑦.⓪.⓪.①/", "more than one name"),
        ("http://[::1%25eth0]/", "not an IPv6|zone"),
        ("http://[fe80::1%eth0]/", "zone"),
        ("http://[::ffff:127.0.0.1]/", "IPv4 address as IPv6"),
        ("http://[::1/", "not a host with a port"),
        ("http://[127.0.0.1]/", "not an IPv6 address"),
        ("http://[v1.x]/", "not an IPv6 address"),
        ("http://example.com/" + "a" * 8000, "longer than 8000"),
        ("http://" + "a." * 127 + "example/", "not a host name"),
        ("http://" + "a" * 64 + ".example/", "not a host name"),
    ],
)
def test_what_programs_read_differently_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ToolValidationError, match=wrong):
        web_url(text)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b", "https://a.example/b"),
        ("b?c#d", "https://a.example/x/b?c"),
        ("//b.example/", "https://b.example/"),
        ("?q", "https://a.example/x/y?q"),
        ("/a b", "https://a.example/a%20b"),
        ("/ü", "https://a.example/%C3%BC"),
        ("http://a.example:443/", "http://a.example:443/"),
    ],
)
def test_a_redirect_is_read_against_the_page_it_comes_from(location: str, target: str) -> None:
    assert str(joined(web_url("https://a.example/x/y"), location)) == target


@pytest.mark.parametrize(
    "location", ["/\\evil.example", "file:///etc/passwd", "http://[", "http://x@127.0.0.1", "data:x"]
)
def test_a_redirect_is_read_as_strictly(location: str) -> None:
    with pytest.raises(ToolValidationError):
        joined(web_url("https://a.example/"), location)


@given(st.text(max_size=60).map(lambda text: "http://" + text) | st.from_regex(r"https?://[ -~]{1,40}", fullmatch=True))
def test_what_is_read_is_plain_and_reads_the_same_again(text: str) -> None:
    try:
        url = web_url(text)
    except ToolValidationError:
        return
    assert (str(url).isascii(), web_url(str(url))) == (True, url)
    assert not set(str(url)) & set(' "<>\\\n')
