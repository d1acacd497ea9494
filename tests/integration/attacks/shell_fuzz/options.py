"""Commands with an option that runs another program, in every spelling: for each program and each option of the rules'
own tables, and for the other words that the manuals name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from loom.activities.adapters.shell.options_that_run import RUNS
from tests.integration.attacks.shell_fuzz.manuals import MANUALS, Manual

_PROGRAMS: Final = sorted(program for program, runs in RUNS.items() if runs.options or runs.starts or runs.words)
_VALUES: Final = ("./evil", "y", "./y", "a", "a/", "id.d")
"""Values of options: a program, files with commands, and folders with programs."""
_COSMETIC: Final = ("LANG", "LC_ALL", "TZ", "CI", "NODE_ENV", "COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR")
_COMPUTED: Final = (
    *("${v}", '"${v}"', "$v", '"$v"', "${v:-}", "${v%z}", "${v#z}", "${v//z/}", "$v$v_", "''$v", "{$v,}", "$v{,}"),
    *("${v:0}", '"${v[0]}"', "${v[@]}", '""$v', "`echo $v`", "$(echo $v)", '"$(echo "$v")"', "${z:-$v}"),
)
"""What a variable `v` is put into."""
_RUNNERS: Final = (
    *("nice @", "timeout 5 @", "time @", "nohup @", "env @", "command @", "stdbuf -o0 @", "xargs @ <<< x", "! @"),
    *("ls | xargs @", "echo x | xargs -I{} @ {}", "find . -maxdepth 0 -exec @ \\;", "find . -maxdepth 0 -exec @ {} +"),
    *("nice -n 5 timeout -k 1 5 @", "echo $(@)", "(@)", "{ @; }", "if @; then echo x; fi", "@ | cat", "echo x && @"),
)
QUOTES: Final[Mapping[str, Callable[[str], str]]] = {
    "'": lambda text: "'" + text.replace("'", "'\\''") + "'",
    '"': lambda text: '"' + re.sub(r'([$`"\\])', r"\\\1", text) + '"',
    "$": lambda text: "$'" + "".join(f"\\x{ord(each):02x}" if each in "'\\$(`" else each for each in text) + "'",
    "`": lambda text: re.sub(r"([$`\\])", r"\\\1", text),
    "\\": lambda text: re.sub(r"([^\w./-])", lambda found: "\\" + found[1] if found[1] != "\n" else ";", text),
}
"""What quotes or escapes a text, in each way of Bash."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,%@")


def written(random: Random, bad: str) -> str:
    """Return a command in which an option or another word of a program runs the bad command."""
    program = random.choice(_PROGRAMS)
    runs, manual = RUNS[program], MANUALS.get(program, Manual())
    own = f"{manual.runs} {manual.reads} {manual.folders}".split()
    options = [*runs.options.split(), *(option for option in own if not manual.is_exact and "=" not in option)]
    value = bad if random.random() < 0.6 else random.choice(_VALUES)
    ways = [
        *(_option(random, option, value, manual) for option in options),
        *(_start(random, start, value) for start in (*runs.starts.split(), *(own if manual.is_exact else ()))),
        *([word.replace("%", bad)] for word in (*manual.words, *manual.tries)),
        *(_keyed(random, key, bad) for key in own if "=" in key),
    ]
    option = random.choice(ways) if ways else [bad]
    if manual.has_old_cluster and random.random() < 0.3:
        before, option = [], [random.choice("cxt") + option[0].strip("-")[:1], *option[1:]]
    else:
        before = [*_others(random, manual)]
    words = [*before, *option, *random.choice(((), ("x",), ("-v", "x")))]
    at = len(before) + random.randrange(len(option)) if random.random() < 0.8 else random.randrange(len(words))
    return _spelled(random, program, words, at)


def _others(random: Random, manual: Manual) -> Sequence[str]:
    """Words before the option: operands, flags, options whose value looks like an option or the end of options."""
    letter = random.choice(manual.values or "o")
    choices = [(), (), (), ("x",), (f"-{random.choice(manual.flags or 'v')}",), (f"-{letter}", "--"), ("--",)]
    return random.choice([*choices, (f"-{letter}", "x"), ("x", "y"), (f"-{letter}x",)])


def _option(random: Random, option: str, value: str, manual: Manual) -> list[str]:
    if option.startswith("--"):
        name = option[: random.randint(3, len(option))] if random.random() < 0.4 else option
        return [f"{name}={value}"] if random.random() < 0.5 else [name, value]
    if len(option) > 2:
        return random.choice(([option, value], [option + value]))
    flags = manual.flags or "v"
    cluster = "-" + "".join(random.choices(flags, k=random.choice((0, 0, 1, 2)))) + option[1]
    return random.choice(([cluster, value], [cluster + value]))


def _start(random: Random, start: str, value: str) -> list[str]:
    return random.choice(([start + value], [start, value], [f"{start}={value}"]))


def _keyed(random: Random, option: str, bad: str) -> list[str]:
    """Return an option whose value runs something only after a key: `--checkpoint-action=exec=id`."""
    name, _, key = option.partition("=") if option.startswith("--") else (option[:2], "", option[2:])
    key = random.choice((key, key.upper(), key.lower())) if name == "-o" else key
    if option.startswith("--"):
        return random.choice(([option + bad], [name, key + bad]))
    return random.choice(([name + key + bad], [name, key + bad]))


def _spelled(random: Random, program: str, words: Sequence[str], at: int) -> str:
    """Return the command, maybe in a runner, with its words as they are, quoted, or the one at a place computed."""
    plain = [_quoted(random, word) for word in words]
    word = words[at]
    cut = random.randint(1, max(1, len(word) - 1))
    head, tail = word[:cut], _single(word[cut:])
    variable = random.choice(_COSMETIC) if random.random() < 0.4 else "x"
    computed = random.choice(_COMPUTED).replace("v", variable)
    ways = [
        *(("", plain),) * 5,
        ("", [*plain[:at], QUOTES["$"](word), *plain[at + 1 :]]),
        ("", [*plain[:at], word[:1] + "''" + tail if word[:1] in _PLAIN else _single(word), *plain[at + 1 :]]),
        ("", [*plain[:at], QUOTES["\\"](word), *plain[at + 1 :]]),
        ("", [*plain[:at], QUOTES['"'](word)[:-1] + '${HOME#/tmp}"', *plain[at + 1 :]]),
        ("", ["{" + ",".join([*(_single(each) for each in words), "x"]) + "}"]),
        ("", [*plain[:at], _single(head) + "{" + tail + ",x}", *plain[at + 1 :]]),
        ("", [*plain[:at], "${z:-" + _single(word) + "}", *plain[at + 1 :]]),
        ("", [*plain[:at], "$(echo " + _single(word) + ")", *plain[at + 1 :]]),
        (f"{variable}={_single(word)}; ", [*plain[:at], computed, *plain[at + 1 :]]),
        (f"{variable}={_single(word)}; ", [*plain[:at], computed, *plain[at + 1 :]]),
        (f"{variable}={tail}; ", [*plain[:at], f'"{head}${{{variable}}}"', *plain[at + 1 :]]),
        (f"{variable}={tail}; ", [*plain[:at], f"{head}${variable}", *plain[at + 1 :]]),
        (f"for x in {_single(word)}; do ", [*plain[:at], "$x", *plain[at + 1 :]]),
    ]
    before, line = random.choice(ways)
    runner = random.choice(_RUNNERS) if random.random() < 0.25 else "@"
    after = "; done" if before.startswith("for ") else ""
    return before + runner.replace("@", " ".join([program, *line])) + after


def _single(word: str) -> str:
    return QUOTES["'"](word)


def _quoted(random: Random, word: str) -> str:
    if set(word) <= _PLAIN and word and random.random() < 0.8:
        return word
    return QUOTES[random.choice("'''\"$")](word) if word else "''"
