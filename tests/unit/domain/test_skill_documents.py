"""SKILL.md: what is taken as it was meant, what is warned of, and the little that nothing can be done with."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.skills.documents import BrokenSkill, Described, Document, described, quoted, split

BODY = "Do it well."


def document(body: str = BODY) -> Document:
    return Document(front="", body=body)


def read(front: Any, *, folder: str = "pdf", body: str = BODY) -> Described:
    return described(front, document(body), root=f"/skills/{folder}", source="user")


def warnings(front: dict[str, Any], **given: str) -> str:
    return "\n".join(read({"name": "pdf", "description": "About PDF files.", **front}, **given).warnings)


def test_a_document_has_two_parts() -> None:
    assert split("---\nname: pdf\n---\n\n# Title\n---\nrest\n") == Document(
        front="name: pdf", body="# Title\n---\nrest"
    )
    assert split("\ufeff---\r\nname: pdf\r\n---\r\nbody\r\n") == Document(front="name: pdf", body="body")


@pytest.mark.parametrize(
    ("text", "says"),
    [("# Title", "has no front matter"), ("", "has no front matter"), ("---\nname: x\n", "has no end")],
)
def test_a_document_without_front_matter_is_broken(text: str, says: str) -> None:
    with pytest.raises(BrokenSkill, match=says):
        split(text)


@pytest.mark.parametrize("front", [[], "text", None, {}, {"name": "pdf"}, {"name": "pdf", "description": " "}])
def test_a_skill_without_a_description_is_broken(front: Any) -> None:
    with pytest.raises(BrokenSkill, match="description"):
        read(front)


def test_every_field_of_the_format_is_read() -> None:
    front = {
        "name": "pdf",
        "description": "About PDF files.",
        "license": "MIT",
        "compatibility": "Needs poppler.",
        "metadata": {"author": "ann", "version": "1.0"},
        "allowed-tools": "Bash(git add *) Read,Write",
    }
    found = read(front)
    assert found.warnings == ()
    skill = found.skill
    assert (skill.name, skill.description, skill.root, skill.source) == (
        "pdf",
        "About PDF files.",
        "/skills/pdf",
        "user",
    )
    assert (skill.license, skill.compatibility) == ("MIT", "Needs poppler.")
    assert skill.metadata == {"author": "ann", "version": "1.0"}
    assert skill.allowed_tools == ("Bash(git add *)", "Read", "Write")


@pytest.mark.parametrize(
    ("given", "name", "says"),
    [
        ({}, "pdf", "there is no name: it is called pdf"),
        ({"name": "other"}, "other", "'other' differs from its folder's name, 'pdf'"),
        ({"name": "PDF Tools"}, "pdf-tools", "'PDF Tools' is not 1 to 64 of a-z"),
        ({"name": "a--b"}, "a-b", "it is called a-b"),
        ({"name": "-a-"}, "a", "it is called a"),
        ({"name": "../../etc"}, "etc", "it is called etc"),
        ({"name": "x" * 70}, "x" * 64, "is not 1 to 64"),
    ],
)
def test_a_name_is_made_usable_and_warned_of(given: dict[str, str], name: str, says: str) -> None:
    found = read({"description": "About.", **given})
    assert found.skill.name == name
    assert says in "\n".join(found.warnings)


def test_a_name_of_which_nothing_is_left_is_broken() -> None:
    with pytest.raises(BrokenSkill, match="neither a letter"):
        read({"name": "你好", "description": "About."})


@given(st.text(max_size=200))
def test_whatever_a_name_is_the_skill_has_a_safe_one_or_none(name: str) -> None:
    try:
        usable = read({"name": name, "description": "About."}).skill.name
    except BrokenSkill:
        return
    assert 1 <= len(usable) <= 64
    assert set(usable) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert "--" not in usable
    assert not usable.startswith("-")
    assert not usable.endswith("-")


@pytest.mark.parametrize(
    ("front", "given", "says"),
    [
        ({"description": "x" * 1025}, {}, "`description` has 1025 characters; the maximum is 1024"),
        ({"compatibility": "x" * 501}, {}, "`compatibility` has 501 characters"),
        ({"metadata": {"a": {"b": "c"}}}, {}, "`metadata` is not a mapping of strings"),
        ({"model": "opus", "color": "red"}, {}, "unknown fields color, model"),
        ({}, {"body": ""}, "no instructions"),
        ({}, {"body": "word " * 5000}, "have about 6250 tokens"),
        ({}, {"body": "a\n" * 600}, "have 601 lines"),
    ],
)
def test_what_departs_from_the_format_is_warned_of_and_taken(
    front: dict[str, Any], given: dict[str, str], says: str
) -> None:
    assert says in warnings(front, **given)


def test_tools_may_be_a_list() -> None:
    assert read({"description": "x", "allowed-tools": ["Read", "Bash(ls *)"]}).skill.allowed_tools == (
        "Read",
        "Bash(ls *)",
    )


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("description: Use it when: files are PDF", "Use it when: files are PDF"),
        ('description: Say "hi": twice \\ thrice', 'Say "hi": twice \\ thrice'),
        ("description: ends with a colon:", "ends with a colon:"),
    ],
)
def test_a_plain_value_with_a_colon_is_put_in_quotes(line: str, value: str) -> None:
    assert yaml.load(quoted(line), Loader=yaml.BaseLoader) == {"description": value}


@pytest.mark.parametrize(
    "line", ["name: pdf", "description: >-", 'd: "a: b"', "list: [a, {b: c}]", "  nested: a", "# note: x", "url: a:b"]
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert quoted(line) == line
