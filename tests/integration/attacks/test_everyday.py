"""Rules that name their programs still allow everyday work, however strict the reading of a line is."""

import pytest

from tests.integration.attacks.everyday import corpus, measured, programs_of

SHARE = 0.9


def test_rules_that_name_the_programs_allow_everyday_commands() -> None:
    allowed, others = measured()
    refused = "\n".join(f"{each.command}: {reason}" for each, reason in others)
    assert len(allowed) >= SHARE * (len(allowed) + len(others)), refused


def test_the_corpus_is_of_ten_projects() -> None:
    commands = corpus()
    assert len(commands) >= 600
    assert len({each.project for each in commands}) >= 10
    assert {each.licence for each in commands} <= {"Apache-2.0", "BSD-3-Clause", "MIT"}


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("a | b && c; d", ["a", "b", "c", "d"]),
        ("sudo -E PATH=$PATH make install", ["sudo", "make"]),
        ('if [ -n "$C" ]; then a x; fi', ["[", "a"]),
        ("for m in $(a list); do b get $m; done", ["a", "b"]),
        ("bash -c 'a && b'", ["bash", "a", "b"]),
        ("X=$(a b | c) d", ["a", "c", "d"]),
        ("find . -exec a x {} \\; | b /dev/stderr", ["find", "a", "b"]),
        ("a # b; c\nd > e", ["a", "d"]),
    ],
)
def test_a_reader_sees_the_programs_of_a_command(command: str, programs: list[str]) -> None:
    assert list(programs_of(command)) == programs
