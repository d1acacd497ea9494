"""Halves of surrogate pairs, which JSON can contain and UTF-8 can't."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.whole_characters import CharacterPieces, accepted_text, whole_characters, with_whole_characters

ANY_TEXT = st.text(st.sampled_from("\ud83d\ude00a\0\u2028😀") | st.characters())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | ANY_TEXT,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(ANY_TEXT, inside, max_size=3),
)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("plain", "plain"),
        ("a\ud83d\ude00b", "a😀b"),
        ("\ud83d", "\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("\ud83d \ude00", "\ufffd \ufffd"),
        ("\0\u2028\ufeff", "\0\u2028\ufeff"),
    ],
)
def test_pairs_are_joined_and_lone_halves_are_replaced(text: str, whole: str) -> None:
    assert whole_characters(text) == whole


@given(ANY_TEXT, st.lists(st.integers(0, 50)))
def test_text_in_pieces_is_the_same_text_as_in_one(text: str, cuts: list[int]) -> None:
    pieces = CharacterPieces()
    ends = sorted(min(cut, len(text)) for cut in cuts)
    fed = [pieces.feed(text[start:end]) for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert "".join((*fed, pieces.flush())) == whole_characters(text)
    for piece in fed:
        piece.encode()


@given(JSON)
def test_a_json_value_with_whole_characters_can_be_encoded_and_is_otherwise_the_same(value: Any) -> None:
    whole = with_whole_characters(value)
    json.dumps(whole, ensure_ascii=False).encode()
    assert with_whole_characters(whole) == whole
    if isinstance(value, str | list | dict):
        assert type(whole) is type(value)


def test_names_have_whole_characters_too() -> None:
    assert with_whole_characters({"\ud83d\ude00": [{"\ud83d": "\ude00"}]}) == {"😀": [{"\ufffd": "\ufffd"}]}


def test_an_accepted_text_has_whole_characters_and_no_nul() -> None:
    assert accepted_text("a\ud83d\ude00\0\ude00") == "a😀\ufffd\ufffd"
