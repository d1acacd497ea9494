"""Repositories in requests: which URLs and names are accepted, and which ones a worker's settings cover."""

import re
from unicodedata import normalize
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import (
    GitWorkspace,
    Repositories,
    problem_of_address,
    problem_of_branch,
    problem_of_revision,
    repository_line,
)

GOOD = (
    *(
        "https://github.com/acme/app.git",
        "https://git.example:8443/a/b/c",
        "https://dev.azure.com/o/My%20Project/_git/x",
    ),
    *("ssh://git@github.com/acme/app.git", "ssh://git.example:22/~ann/app", "file:///srv/git/app.git"),
)
BAD = (
    *("ext::sh -c 'touch /tmp/x'", "--upload-pack=touch /tmp/x", "-u", "git@github.com:acme/app", "/srv/git/app"),
    *(
        "http://github.com/acme/app",
        "git://github.com/acme/app",
        "HTTPS://github.com/acme/app",
        "https:github.com/acme",
    ),
    *("https://user:secret@github.com/acme/app", "https://token@github.com/acme/app", "ssh://git:secret@host/app"),
    *("ssh://-oProxyCommand=x/app", "ssh://git@-oProxyCommand=x/app", "ssh://-x@host/app", "https://host:x/app"),
    *("https://host", "https://host/", "https:///app", "https://host/app?x=1", "https://host/app#x"),
    *(
        "https://host/a/../b",
        "https://host/a/%2e%2e/b",
        "https://host/a/%252e%252e/b",
        "https://host/a%2fb",
        "https://host/a//b",
    ),
    *("https://host/a\\b", "https://host/a b", "https://host/a\nb", "https://host/\u202eb", "https://host\x00/a"),
    *(
        "https://host/a/..;/b",
        "https://host/a/%25252e%25252e/b",
        "https://host/a/%c0%ae%c0%ae/b",
        "https://host/a/..%20/b",
    ),
    *(
        "https://host/a/.../b",
        "https://host/a./b",
        "https://host/a%20/b",
        "https://host/a/\u2025/b",
        "https://host/\u00fc",
    ),
    *("https://host:0443/a", "https://host:/a", "https://host:70000/a", "ssh://host/a;b", "ssh://host/$HOME/a"),
    *("file://host/srv/app", "file:///srv/../etc", "file:///srv/%2e%2e/etc", "file://", "ext::file:///srv/app"),
)


@pytest.mark.parametrize("url", GOOD)
def test_a_plain_url_of_a_repository_is_accepted(url: str) -> None:
    assert problem_of_address(url) == ""


@pytest.mark.parametrize("url", BAD)
def test_a_url_that_git_or_a_server_could_take_for_something_else_is_refused(url: str) -> None:
    assert problem_of_address(url).startswith("must")


@pytest.mark.parametrize("name", ["main", "fix/readme", "v1.2", "a@b", "ünder", "x" * 200])
def test_a_name_that_git_accepts_is_accepted(name: str) -> None:
    assert (problem_of_branch(name), problem_of_revision(name)) == ("", "")


@pytest.mark.parametrize(
    "name",
    [
        *("-f", "--force", "a..b", "a b", "a:b", "a^", "a~1", "a?", "a*", "a[0]", "a\\b", "@", "HEAD", "@{1}"),
        *("/a", "a/", "a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a\nb", "a\x7f", "refs/heads/a", "x" * 300),
    ],
)
def test_a_name_that_git_refuses_is_refused(name: str) -> None:
    assert problem_of_branch(name)
    assert problem_of_revision(name)


@pytest.mark.parametrize(
    ("listing", "url", "is_covered"),
    [
        ("https://github.com/acme/", "https://github.com/acme/app", True),
        ("https://github.com/acme/", "https://GitHub.com:443/acme/app.git", True),
        ("https://github.com/acme/", "https://github.com/acme/deep/er", True),
        ("https://github.com/acme/", "https://github.com/acme", False),
        ("https://github.com/acme/", "https://github.com/acme.git", False),
        ("https://github.com/acme/", "https://github.com/acme-evil/app", False),
        ("https://github.com/acme/", "https://github.com/acme.git/app", False),
        ("https://github.com/acme/", "https://github.com/Acme/app", False),
        ("https://github.com/acme/", "https://github.com.evil.example/acme/app", False),
        ("https://github.com/acme/", "https://github.com:8443/acme/app", False),
        ("https://github.com/acme/", "ssh://github.com/acme/app", False),
        ("https://github.com/acme/app", "https://github.com/acme/app.git", True),
        ("https://github.com/acme/app", "https://github.com/acme/app/", True),
        ("https://github.com/acme/app.git", "https://github.com/acme/app", True),
        ("https://github.com/acme/app.git", "https://github.com/acme/app/other", False),
        ("https://github.com/acme/app.git", "https://github.com/acme/app.git/other", False),
        ("https://github.com/acme/My%20App", "https://github.com/acme/My%20App", True),
        ("ssh://git@host/srv", "ssh://git@HOST:22/srv/app", True),
        ("ssh://git@host/srv", "ssh://root@host/srv/app", False),
        ("ssh://git@host/srv", "ssh://Git@host/srv/app", False),
        ("ssh://git@host/srv", "ssh://host/srv/app", False),
        ("ssh://host", "ssh://host/srv/app", True),
        ("ssh://host", "ssh://host/~root/app", False),
        ("ssh://host/~ann", "ssh://host/~ann/app", True),
        ("file:///srv/git", "file:///srv/git/app", True),
        ("file:///srv/git", "file:///srv/git", True),
        ("file:///srv/git", "file:///srv/gits/app", False),
        ("file:///srv/git", "file:///srv/git/../other", False),
        ("file:///srv/git", "file:///", False),
    ],
)
def test_a_setting_covers_what_is_below_it(listing: str, url: str, is_covered: bool) -> None:
    listed = Repositories(clone=(listing,))

    if is_covered:
        listed.refuse(GitWorkspace(git=url))
    else:
        with pytest.raises(BadRequest, match="LOOM_REPOSITORIES"):
            listed.refuse(GitWorkspace(git=url))


PIECES = st.sampled_from(
    [
        *(
            "acme",
            "acme.git",
            "app",
            "secret",
            "~root",
            "~",
            ".",
            "..",
            "...",
            "..;",
            "..;x=1",
            ".git",
            "%20",
            "%2e",
            "%2E",
        ),
        *(
            "%252e",
            "%25252e",
            "%2f",
            "%5c",
            "\\",
            "/",
            "//",
            ";",
            "+",
            "@",
            ":",
            "\uff0e",
            "\u2025",
            "\u2024",
            "%c0%ae",
            "",
        ),
    ]
)
PLACES = st.tuples(
    st.sampled_from(["https", "ssh", "file"]),
    st.sampled_from(["", "git@", "root@", "Git@"]),
    st.sampled_from(["", "host", "HOST", "host.", "evil", "host@evil"]),
    st.sampled_from(["", ":443", ":22", ":0443", ":8443"]),
)
URLS = st.builds(
    lambda place, pieces: f"{place[0]}://{''.join(place[1:])}/{''.join(pieces)}",
    PLACES,
    st.lists(st.one_of(PIECES, st.just("/")), max_size=9),
)
NEAR = st.builds(
    lambda start, pieces: start + "".join(pieces),
    st.sampled_from(
        ["https://host/acme", "https://HOST:443/acme/", "ssh://git@host:22/acme/", "ssh://git@host/", "file:///acme/"]
    ),
    st.lists(st.one_of(PIECES, st.just("/")), max_size=7),
)
LISTINGS = (
    "https://host/acme",
    "https://host/acme/",
    "ssh://git@host/acme/",
    "ssh://git@host",
    "file:///acme",
    "file:///acme/app.git",
)


def resolved(url: str) -> tuple[str, str, str, int, list[str]]:
    """Where a server looks that decodes, and folds, as much as any server does."""
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    user, _, place = authority.rpartition("@")
    host, _, port = place.lower().partition(":")
    while (decoded := normalize("NFKC", unquote(path, errors="replace")).replace("\ufffd", ".")) != path:
        path = decoded
    below: list[str] = ["HOMES"] if scheme == "ssh" and path.startswith("~") else []
    for part in re.split(r"[/\\]+", path):
        name = part.partition(";")[0].rstrip(" ") if part.strip(" .") else part.strip(" ")
        if name in ("..", "..."):
            below = below[:-1]
        elif name.strip("."):
            below.append(name.rstrip("."))
    return scheme, user, host.rstrip("."), int(port or {"https": 443, "ssh": 22}.get(scheme, 0)), below


@given(listing=st.sampled_from(LISTINGS), url=st.one_of(NEAR, URLS))
def test_what_a_setting_covers_is_below_it_for_every_server(listing: str, url: str) -> None:
    try:
        Repositories(clone=(listing,)).refuse(GitWorkspace(git=url))
    except BadRequest:
        return

    *server, below = resolved(url)
    *listed_server, top = resolved(listing)
    assert server == listed_server
    is_same = (
        not listing.endswith("/")
        and below[-1:]
        and (
            [*below[:-1], below[-1].removesuffix(".git")]
            == [*top[:-1], *(name.removesuffix(".git") for name in top[-1:])]
        )
    )
    assert is_same or (below[: len(top)] == top and len(below) > len(top) and "HOMES" not in below)


def test_pushing_needs_a_listing_of_its_own() -> None:
    listed = Repositories(clone=("https://h/a",), push=("https://h/a/b",))

    listed.refuse(GitWorkspace(git="https://h/a/b", push="fix"))
    with pytest.raises(BadRequest, match="LOOM_PUSH_REPOSITORIES"):
        listed.refuse(GitWorkspace(git="https://h/a/c", push="fix"))


def test_people_see_the_repository_and_what_has_become_of_the_change() -> None:
    view = {"git": "https://h/a", "revision": "main", "commit": "0123456789abcdef"}
    packed: dict[str, object] = {"archive": "fedcba9876543210", "name": "app.zip", "commit": "0123456789abcdef"}

    assert repository_line(packed) == "archive app.zip at 0123456789ab"
    assert repository_line({**packed, "name": None, "left_out": ["a/.git"], "files": 2}) == (
        "archive fedcba987654 at 0123456789ab, without a/.git · 2 changed files"
    )
    assert repository_line(view) == "repository https://h/a, main at 0123456789ab"
    ended = {**view, "files": 1, "branch": "fix", "pushed": "abcdef0123456789", "problem": None}
    assert (
        repository_line(ended)
        == "repository https://h/a, main at 0123456789ab · 1 changed file, pushed to fix as abcdef012345"
    )
