"""All arguments and options, taken from the commands: each wrong value is refused with code 2 and its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from loom.cli.main import LazyCommand, build_app
from loom.exit_codes import UNREACHABLE, USAGE
from tests.commands import Commands, commands_in

DEEP: Final = '{"a":' * 3000
WRONG_JSON: Final = ("{", "[1]", '{"a": NaN}', '{"a": "\\ud800"}', DEEP)
WRONG_PATHS: Final = ("circle", "x" * 5000, "~nobody-has-this-name/file")
PATHS: Final = ("DIR", "FILE", "PATH")


ROOT: Any = get_command(build_app())


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands, groups left out, with the words that call them."""
    command = command.load() if hasattr(command, "load") else command
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from leaves(inner, (*path, name))


LOADED: Final = {name: lazy.load() for name, lazy in ROOT.commands.items() if isinstance(lazy, LazyCommand)}
COMMANDS: Final = {" ".join(path): command for path, command in leaves(ROOT) if path != ("help",)}


def name_of(parameter: Any) -> str:
    return str(max(parameter.opts, key=len))


def taking_values(command: Any) -> list[Any]:
    return [each for each in command.params if not getattr(each, "is_flag", False) and each.name != "help"]


def line_with(command: Any, wrong: Any, value: str) -> list[str]:
    """A command line with this value. All arguments and the options that the command needs are 0 otherwise."""
    options, arguments = [], []
    for each in taking_values(command):
        given = value if each is wrong else "0"
        if not name_of(each).startswith("--"):
            arguments.append(given)
        elif each.required or each is wrong:
            options += [name_of(each), given]
    return [*options, "--", *arguments]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.setattr(LazyCommand, "load", lambda lazy: LOADED[str(lazy.name)])  # each takes 50 ms to build
    (tmp_path / "circle").symlink_to("circle")
    with commands_in(tmp_path, monkeypatch) as ready:
        yield ready


@pytest.mark.parametrize("words", COMMANDS)
def test_a_blank_value_and_bytes_that_are_no_text_are_refused_by_each_command(words: str, command: Commands) -> None:
    for parameter in taking_values(COMMANDS[words]):
        named = name_of(parameter) if name_of(parameter).startswith("--") else "an argument"
        for value, says in ((" ", "is empty"), ("\udce9", "is not valid UTF-8: '\\udce9'")):
            ran = command(*words.split(), *line_with(COMMANDS[words], parameter, value))
            assert (ran.code, ran.out) == (USAGE, "")
            assert ran.err.startswith(f"{named} {says}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--push", "fix"), "--push needs --git, which names the repository"),
        (("--revision", "main"), "--revision needs --git, which names the repository"),
        (("--git", "https://git.example/app", "--workspace", "."), "--workspace and --git can't be combined"),
        (("--archive", "app.zip", "--git", "https://git.example/app"), "--git and --archive can't be combined"),
        (("--archive", "no-such.zip"), "--archive: no-such.zip cannot be read: No such file or directory"),
        (("--git", "git@git.example:app"), "workspace.git must begin with https://, ssh:// or file://"),
        (("--git", "https://git.example/app", "--revision", "a..b"), "workspace.revision must be a branch, a tag, or"),
        (("--git", "https://git.example/app", "--push", "a b"), "workspace.push must be a name that Git accepts"),
    ],
)
def test_wrong_git_options_are_refused_with_the_reason(words: tuple[str, ...], says: str, command: Commands) -> None:
    ran = command("run", "Fix it.", *words)
    assert (ran.code, ran.out) == (USAGE, "")
    assert says in ran.err


@pytest.mark.parametrize(
    ("words", "first"), [(("run", "-"), "TASK"), (("crew", "run", "team", "-"), "TASK"), (("chat",), "the messages")]
)
def test_standard_input_is_read_once(words: tuple[str, ...], first: str, command: Commands) -> None:
    ran = command(*words, "--archive", "-")
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.err == f"standard input can't be both {first} and --archive: name a file for --archive"


def test_a_blank_value_after_an_equals_sign_is_refused(command: Commands) -> None:
    ran = command("list", "--tenant=")
    assert (ran.code, ran.err) == (USAGE, "--tenant is empty: give it a value, or leave it out")


@pytest.mark.parametrize("more", ["--detach", "--yes", "--id=a-run"])
def test_an_estimate_does_not_start_a_run(more: str, command: Commands) -> None:
    ran = command("run", "do it", "--estimate", more)
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.err.startswith("--estimate doesn't start a run")


def test_a_number_that_is_none_is_refused_in_words(command: Commands) -> None:
    for option, value, says in (
        ("--max-turns", "many", "must be a whole number, not 'many'"),
        ("--patience", "long", "must be a number, not 'long'"),
        ("--priority", "6", "must be at most 5, not '6'"),
    ):
        ran = command("run", "work", option, value)
        assert ran.code == USAGE
        assert ran.err.rstrip().endswith(f"Invalid value for '{option}': {says}")


@pytest.mark.parametrize(
    ("words", "parameter"),
    [
        pytest.param(words, each, id=f"{words} {name_of(each)}")
        for words, found in COMMANDS.items()
        for each in taking_values(found)
        if "JSON" in (each.metavar or "")
    ],
)
def test_json_that_cannot_be_sent_is_refused_before_anything_else(
    words: str, parameter: Any, command: Commands
) -> None:
    (command.folder / "0").write_text(
        '{"task": "work", "checks": [{"contains": "x"}]}', encoding="utf-8"
    )  # of `loom eval`
    for value in WRONG_JSON:
        ran = command(*words.split(), *line_with(COMMANDS[words], parameter, value))
        assert (ran.code, ran.out) == (USAGE, ""), (value[:20], ran)
        assert ran.err.splitlines() == [ran.err]
        assert (name_of(parameter) if name_of(parameter).startswith("--") else parameter.metavar) in ran.err


@pytest.mark.parametrize(
    ("words", "parameter"),
    [
        pytest.param(words, each, id=f"{words} {name_of(each)}")
        for words, found in COMMANDS.items()
        for each in taking_values(found)
        if any(kind in (each.metavar or "") for kind in PATHS)
    ],
)
def test_a_path_that_cannot_be_followed_is_an_error_of_the_person_who_typed_it(
    words: str, parameter: Any, command: Commands
) -> None:
    for value in WRONG_PATHS:
        ran = command(*words.split(), *line_with(COMMANDS[words], parameter, value))
        assert ran.code in {USAGE, UNREACHABLE}
        assert "Traceback" not in ran.err
