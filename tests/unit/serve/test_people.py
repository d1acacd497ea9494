"""Names of callers: which are valid, and which are the same person."""

from hypothesis import given
from hypothesis import strategies as st

from loom.serve.access.people import LONGEST_NAME, different_people, is_valid_name, person

DISGUISES = ("Ann", "ANN", "ann ", "a nn", "\uff21nn", "\u0430nn", "\u0391NN", "a\u0301nn", "\u00e1nn", "an\u200bn")
"""Names that people read as `ann`."""


def test_names_that_look_alike_are_one_person() -> None:
    assert different_people(("ann", *DISGUISES, "bob", "ann@acme")) == ("ann", "bob", "ann@acme")


@given(st.text())
def test_a_person_is_the_same_however_often_it_is_asked(name: str) -> None:
    assert person(person(name)) == person(name) == person(name.upper()) or not name.isascii()


@given(st.characters(categories=["C", "Z"], exclude_characters=" "))
def test_no_name_contains_what_nobody_sees(char: str) -> None:
    assert not any(is_valid_name(name) for name in (f"a{char}nn", f"ann{char}", char))


def test_a_name_has_no_comma_no_outer_space_and_a_bounded_length() -> None:
    valid = {
        name
        for name in ("ann", "Ann Lee", "日", "", " ann", "ann ", "a,b", "a" * LONGEST_NAME, "a" * 256)
        if is_valid_name(name)
    }
    assert valid == {"ann", "Ann Lee", "日", "a" * LONGEST_NAME}
