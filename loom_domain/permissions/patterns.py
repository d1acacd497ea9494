"""Patterns in permission rules, which are matched against commands, paths, hosts, values and names.

A backslash escapes the next `*`, `?`, `[` or backslash, so you can write an exact rule for any text. Matching takes
linear time, regardless of the number of stars in a rule and the length of a model's text. The text between two stars is
matched at its leftmost position and never retried (atomic groups). Paths and hosts are matched component by component.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

_PIECE: Final = re.compile(r"\\([\\*?\[~])|(\*+)|(\?)|\[([!^]?)(\]?[^\]/]*)\]|(.)", re.DOTALL)
_STARRED: Final = re.compile(r"\\([\\*])|(\*+)|(.)", re.DOTALL)
_PORT: Final = re.compile(r":\d*\Z")

_Parts: TypeAlias = tuple[re.Pattern[str] | None, ...]
"""Patterns for a path's components. None stands for any number of components."""


def is_glob(pattern: str, *, only_stars: bool = False) -> bool:
    """Whether the pattern matches more than one text. In commands, hosts and names, only a star is a wildcard."""
    if only_stars:
        return any(match[2] for match in _STARRED.finditer(pattern))
    return any(match[2] or match[3] or match[5] is not None for match in _PIECE.finditer(pattern))


def literal_start(pattern: str) -> str:
    """Return the literal text that precedes the first star of a command pattern."""
    start = ""
    for match in _STARRED.finditer(pattern.removesuffix(":*")):
        if match[2]:
            break
        start += match[1] or match[3]
    return start


def has_text_after_star(pattern: str) -> bool:
    """Whether a command pattern names text that can be anywhere in a command."""
    found = [match[2] is not None for match in _STARRED.finditer(pattern.removesuffix(":*"))]
    return True in found and False in found[found.index(True) :]


def escaped(text: str, special: str = "*") -> str:
    """Return a pattern that matches exactly this text. `special` lists the characters to escape."""
    return re.sub(rf"[\\{re.escape(special)}]", lambda match: "\\" + match[0], text)


@lru_cache(maxsize=4096)
def command(pattern: str) -> re.Pattern[str]:
    """Compile a command pattern. `*` matches any text. A trailing ` *` or `:*` also matches the command without further
    words, but never a longer word.
    """
    for ending in (":*", " *"):
        if pattern.endswith(ending):
            return re.compile(_wild(_chunks(pattern[: -len(ending)]), r"(?:\s.*)?"), re.DOTALL)
    return re.compile(_wild(_chunks(pattern)), re.DOTALL)


@lru_cache(maxsize=1024)
def name(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for a tool name, an argument value, or a text without its own syntax. `*` matches any text."""
    return re.compile(_wild(_chunks(pattern)), re.DOTALL)


def covers_path(pattern: str, text: str, absolute: str, *, home: str = "", exact: bool = False) -> bool:
    """Whether the pattern of an allow rule covers a path. A relative pattern starts at the workspace, and a pattern
    that matches a folder covers everything in it.
    """
    parts = _path(pattern, home, text, absolute)
    if parts is None:
        return False
    spelled, held = parts
    below = not exact and (spelled.endswith("/") or not is_glob(spelled.rpartition("/")[2]))
    return _match(_compiled(spelled, is_open=False), held, below=below)


def touches_path(pattern: str, text: str, absolute: str, *, home: str = "") -> bool:
    """Whether the pattern of an ask or deny rule matches a path. The pattern `x` matches at any depth, and a pattern
    that matches a folder also matches everything in it.
    """
    parts = _path(pattern, home, text, absolute)
    if parts is None:
        return text.startswith("/") and _floats(pattern) and touches_path(pattern, text[1:], absolute, home=home)
    spelled, held = parts
    return _match(_compiled(spelled, is_open=True, floats=_floats(pattern)), held, below=True)


def may_reach(pattern: str, text: str, absolute: str, *, home: str = "") -> bool:
    """Whether the pattern of an ask or a deny rule can match a path in this folder."""
    parts = _path(pattern, home, text, absolute)
    if parts is None or _floats(pattern) or not parts[1]:
        return parts is not None
    wanted = _compiled(parts[0], is_open=True)
    return all(one is None or one.fullmatch(part) for one, part in zip(_until_any(wanted), parts[1], strict=False))


def may_meet(pattern: str, glob: str) -> bool:
    """Whether a path can match both the pattern of an ask or deny rule and a glob of the shell. Only the last component
    that the rule names is compared, with each component of the glob.
    """
    named = [part for part in pattern.split("/") if part.strip("*.~")]
    return not named or any(_meet(_atoms(named[-1]), _atoms(part)) for part in glob.split("/") if part)


def covers_host(pattern: str, host: str) -> bool:
    """Whether the pattern matches a host. A leading `*.` matches one or more labels. Any other `*` matches within a
    label.
    """
    wanted, labels = _labels(pattern), _labels(host)
    if wanted[:1] == ["*"] and len(wanted) > 1:
        wanted, labels = wanted[1:], labels[-len(wanted) + 1 :] if len(labels) >= len(wanted) else []
    return len(wanted) == len(labels) and all(
        name(one).fullmatch(label) for one, label in zip(wanted, labels, strict=True)
    )


def is_value(pattern: str, value: object) -> bool:
    """Whether an argument's value matches the pattern. Objects, lists and null never match."""
    if isinstance(value, bool):
        return name(pattern).fullmatch("true" if value else "false") is not None
    if not isinstance(value, str | int | float):
        return False
    return name(pattern).fullmatch(str(value)) is not None or _is_same_number(pattern, value)


def _is_same_number(pattern: str, value: str | float) -> bool:
    try:
        return float(pattern) == float(value)
    except (ValueError, OverflowError):
        return False


def _labels(host: str) -> list[str]:
    bare = host.lower() if host.count(":") > 1 and "]" not in host else _PORT.sub("", host.lower())
    return bare.strip("[]").rstrip(".").split(".")


def _floats(pattern: str) -> bool:
    return not pattern.startswith(("/", "./", "~/")) and pattern not in (".", "~")


def _path(pattern: str, home: str, text: str, absolute: str) -> tuple[str, list[str]] | None:
    """Return the pattern without its root, and the path's components below that root. Returns None if the path has
    another root.
    """
    if pattern.startswith(("//", "~/")) or pattern == "~":
        if not absolute or (pattern[0] == "~" and not home):
            return None
        spelled = pattern[2:] if pattern[0] == "/" else home.strip("/") + pattern[1:]
        return spelled, [part for part in absolute.split("/") if part]
    if text.startswith("/"):
        return None
    return pattern.removeprefix("./").removeprefix("/"), [] if text == "." else text.split("/")


@lru_cache(maxsize=4096)
def _compiled(spelled: str, *, is_open: bool, floats: bool = False) -> _Parts:
    """Compile the pattern. If `is_open`, a matching folder includes everything in it, so a trailing `/**` has no
    effect.
    """
    pieces = [piece for piece in spelled.split("/") if piece not in ("", ".")]
    while is_open and (pieces[-1:] == ["**"] or pieces == ["*"]):
        pieces.pop()
    if pieces[-1:] == ["**"] and len(pieces) > 1:
        pieces.insert(-1, "*")
    parts = tuple(None if piece == "**" else re.compile(_segment(piece), re.DOTALL) for piece in pieces)
    return (None, *parts) if floats else parts


def _match(wanted: _Parts, parts: Sequence[str], *, below: bool) -> bool:
    """Match the path's components one by one while tracking all possible positions in the pattern."""
    places = _with_skipped(wanted, {0})
    for part in parts:
        if below and len(wanted) in places:
            return True
        places = _with_skipped(wanted, {step for at in places for step in _step(wanted, at, part)})
    return len(wanted) in places


def _step(wanted: _Parts, at: int, part: str) -> tuple[int, ...]:
    if at == len(wanted):
        return ()
    one = wanted[at]
    if one is None:
        return (at,)
    return (at + 1,) if one.fullmatch(part) else ()


def _with_skipped(wanted: _Parts, places: set[int]) -> set[int]:
    for at in sorted(places):
        step = at
        while step < len(wanted) and wanted[step] is None:
            step += 1
            places.add(step)
    return places


def _until_any(wanted: _Parts) -> _Parts:
    return wanted[: wanted.index(None)] if None in wanted else wanted


def _segment(pattern: str) -> str:
    """Translate one path component to a regular expression. `*`, `?` and `[abc]` match within the component."""
    chunks = [""]
    for match in _PIECE.finditer(pattern):
        literal, star, one, negated, inner, plain = match.groups()
        if star:
            chunks.append("")
        elif inner is not None:
            chunks[-1] += _set(inner, negated) if inner else re.escape(match[0])
        else:
            chunks[-1] += "." if one else re.escape(literal or plain)
    return _wild(chunks)


_RANGE: Final = re.compile(r"(.)(?:-(.))?", re.DOTALL)
"""A range or a single character in a character set. Each end of a range can be any character, including a hyphen."""


def _set(inner: str, negated: str) -> str:
    text = _RANGE.sub(lambda match: "-".join(re.escape(end) for end in match.groups() if end), inner)
    source = f"[{'^' if negated else ''}{text}]"
    try:
        re.compile(source)
    except re.error:  # a reversed range matches nothing
        return r"(?!)"
    return source


def _atoms(text: str) -> tuple[str, ...]:
    """Return the characters of a glob. A star or a brace stands for any text, a question mark or a set for any
    character.
    """
    return tuple(map(_atom, _PIECE.finditer(text)))


def _atom(match: re.Match[str]) -> str:
    if match[2] or match[6] in ("{", "}"):
        return "*"
    return "?" if match[3] or match[5] is not None else match[1] or match[6]


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether a text matches both globs."""
    reached = [[False] * (len(other) + 1) for _ in range(len(one) + 1)]
    reached[0][0] = True
    for at in range(len(one) + 1):
        for to in range(len(other) + 1):
            if not reached[at][to]:
                continue
            first, second = one[at] if at < len(one) else "", other[to] if to < len(other) else ""
            if first == "*" or (first and second == "*"):
                reached[at + 1][to] = True
            if second == "*" or (second and first == "*"):
                reached[at][to + 1] = True
            if first and second and (first == second or "?" in (first, second)):
                reached[at + 1][to + 1] = True
    return reached[len(one)][len(other)]


def _chunks(pattern: str) -> list[str]:
    chunks = [""]
    for match in _STARRED.finditer(pattern):
        if match[2]:
            chunks.append("")
        else:
            chunks[-1] += re.escape(match[1] or match[3])
    return chunks


def _wild(chunks: Sequence[str], ending: str = "") -> str:
    if len(chunks) == 1:
        return chunks[0] + ending
    first, *middle, last = chunks
    return first + "".join(f"(?>.*?{chunk})" for chunk in middle if chunk) + ".*" + last + ending
