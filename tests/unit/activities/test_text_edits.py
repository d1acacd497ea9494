"""Editing a text keeps every byte outside the edit, whatever the file's encoding and line ends are."""

import codecs

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loom.activities.toolbox.built_in.text_edits import edit_for, file_text
from loom.activities.toolbox.workspace.text_bytes import form_of, name_from, plain_lines, readable

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LINES = st.lists(st.tuples(st.text(st.sampled_from("ab é€\U0001f600\u2028\x85"), max_size=4), ENDS), max_size=5)
FORMS = st.sampled_from(
    [
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ]
)


def text_of(lines: list[tuple[str, str]]) -> str:
    return "".join(line + end for line, end in lines)


@given(form=FORMS, before=LINES, after=LINES, old=LINES, new=LINES)
def test_only_the_bytes_of_a_unique_piece_change(
    form: tuple[bytes, str],
    before: list[tuple[str, str]],
    after: list[tuple[str, str]],
    old: list[tuple[str, str]],
    new: list[tuple[str, str]],
) -> None:
    mark, encoding = form
    start, end = text_of(before), text_of(after)
    piece, other = f"<{text_of(old)}>", f"<{text_of(new)}!"
    file = file_text(mark + (start + piece + end).encode(encoding))
    edit = edit_for(file, plain_lines(piece), plain_lines(other))
    places = edit.places(file.text)
    assert places == [(len(start), len(start + piece))]
    made = file.bytes_of(edit.apply(file.text, places))
    head, tail = mark + start.encode(encoding), end.encode(encoding)
    assert made.startswith(head)
    assert made.endswith(tail)
    within = made[len(head) : len(made) - len(tail)].decode(encoding)
    assert plain_lines(within) == plain_lines(other)


@given(st.binary(), st.binary())
@example(b"caf\xe9\r\n", b"\xff\x80")
def test_bytes_of_any_encoding_survive(before: bytes, after: bytes) -> None:
    data = before + b"<piece>" + after
    assume(form_of(data).encoding == "utf-8")
    assume(data.count(b"<piece>") == 1)
    file = file_text(data)
    edit = edit_for(file, "<piece>", "<other>")
    assert file.bytes_of(edit.apply(file.text, edit.places(file.text))) == before + b"<other>" + after


@given(form=FORMS, lines=LINES)
def test_a_text_without_an_edit_is_stored_as_it_was(form: tuple[bytes, str], lines: list[tuple[str, str]]) -> None:
    data = form[0] + text_of(lines).encode(form[1])
    file = file_text(data)
    assert file.bytes_of(file.text) == data


@pytest.mark.parametrize(
    ("text", "old", "new", "after"),
    [
        ("one\r\ntwo\r\n", "two", "two\nmore", "one\r\ntwo\r\nmore\r\n"),
        ("one\r\ntwo", "two", "two\nmore", "one\r\ntwo\r\nmore"),
        ("one\rtwo\r", "one\ntwo", "one\n1.5\ntwo", "one\r1.5\rtwo\r"),
        ("a\nb\r\nc\n", "a\nb\nc", "A\nB\nC", "A\nB\r\nC\n"),
        ("a\nb\r\nc\n", "b", "b\nb2", "a\nb\r\nb2\r\nc\n"),
        ("a\nb\r\nc\n", "a\n", "", "b\r\nc\n"),
        ("a\r\nb\n", "a\nb", "a\nx\ny\nb", "a\r\nx\ny\nb\n"),
        ("a\r\nb\r\n", "a\r\nb", "a\nc", "a\r\nc\r\n"),
        ("a\r\nb\r\n", "a\r\n", "a\n", "a\nb\r\n"),
        ("a\nb\n", "a\n", "a\r\n", "a\r\nb\n"),
        ("x\n", "x", "10%\r20%", "10%\r20%\n"),
        ("x", "x", "y\nz", "y\nz"),
    ],
)
def test_new_lines_get_the_line_ends_around_them(text: str, old: str, new: str, after: str) -> None:
    file = file_text(text.encode())
    edit = edit_for(file, old, new)
    assert edit.apply(file.text, edit.places(file.text)) == after


def test_every_occurrence_keeps_its_own_line_ends() -> None:
    file = file_text(b"a\nb\na\r\nb\r\n")
    edit = edit_for(file, "a\nb", "a\nc")
    assert edit.apply(file.text, edit.places(file.text)) == "a\nc\na\r\nc\r\n"


def test_of_two_places_that_differ_in_line_ends_one_can_be_named() -> None:
    file = file_text(b"a\nb\na\r\nb\r\n")
    assert edit_for(file, "a\nb", "c").places(file.text) == [(0, 3), (4, 8)]
    assert edit_for(file, "a\r\nb", "c").places(file.text) == [(4, 8)]


@pytest.mark.parametrize("data", [b"\xff\xfea", b"\xfe\xff\x00", b"\xff\xfe\0\0abc"])
def test_bytes_that_their_mark_belies_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"utf-\d"):
        file_text(data)


@given(st.binary(max_size=20))
def test_a_name_of_any_bytes_is_shown_so_that_it_can_be_named_again(name: bytes) -> None:
    assume(b"\\" not in name)
    listed = name.decode("utf-8", "surrogateescape")
    shown = readable(listed)
    shown.encode()
    assert name_from(shown) == listed


def test_a_name_can_spell_no_ascii_character() -> None:
    assert name_from(r"\x2e\x2e\x2f\x67it\x7f") == r"\x2e\x2e\x2f\x67it\x7f"


@pytest.mark.parametrize("data", [b"10%\r50%\r100%", b"10%\r50%\r100%\r", b"1/3\r2/3\r3/3\r", b"one\rtwo", b"one\r"])
def test_a_file_with_progress_gives_no_line_ends_to_its_new_content(data: bytes) -> None:
    assert file_text(data).with_own_line_ends("#!/bin/sh\nls\n") == "#!/bin/sh\nls\n"


def test_a_file_whose_lines_end_in_carriage_returns_keeps_them() -> None:
    assert file_text(b"one\rtwo\r").with_own_line_ends("a\nb\n") == "a\rb\r"


def test_new_lines_never_become_one_line_end() -> None:
    file = file_text(b"x\ry\nz")
    edit = edit_for(file, "x\ny\nz", "1\n\n2")
    assert plain_lines(edit.apply(file.text, edit.places(file.text))) == "1\n\n2"
