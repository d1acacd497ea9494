"""Read YAML, TOML and JSON files. Only plain values are supported, and duplicate keys are rejected."""

import json
import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from loom.domain.core.errors import BadRequest

MOST_BYTES: Final = 256 * 1024
MOST_BYTES_OF_ENTRIES: Final = 64 * 1024 * 1024

T = TypeVar("T")


def documents_in(folders: Iterable[Path], endings: Iterable[str]) -> tuple[Path, ...]:
    """Return the files with these suffixes in these folders, sorted by name. A missing folder counts as empty.

    Raises BadRequest if a file is a link that leads out of its folder: whoever may change what it leads to could define
    an agent.
    """
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
    return tuple(dict.fromkeys(_within(path) for path in found if path.suffix.lower() in endings and path.is_file()))


def _within(path: Path) -> Path:
    """Return the resolved path of a file. Raises BadRequest if it isn't in its folder."""
    resolved = path.resolve()
    if not resolved.is_relative_to(path.parent.resolve()):
        raise BadRequest(f"{path}: is a link out of its folder: put the file itself there", field=str(path))
    return resolved


def read_each(paths: Iterable[Path], read: Callable[[Path], T], *, field: str) -> tuple[T, ...]:
    """Return the definition in each of these files. Raises BadRequest, which lists the errors in all files."""
    definitions: list[T] = []
    problems: list[str] = []
    for path in paths:
        try:
            definitions.append(read(path))
        except BadRequest as error:
            problems.append(error.message)
    if problems:
        raise BadRequest("\n".join(problems), field=field)
    return tuple(definitions)


def read_document(path: Path) -> Mapping[str, Any]:
    """Return the contents of a YAML, TOML or JSON file.

    Raises BadRequest if the file can't be read or parsed. The error names the file and, if possible, the line.
    """
    text = _text_of(path)
    try:
        found = _parsed(text, path.suffix.lower())
    except yaml.YAMLError as error:
        raise BadRequest(f"{path}: not valid YAML: {_where(error)}", field=str(path)) from None
    except ValueError as error:  # TOML and JSON errors, which contain the line
        raise BadRequest(f"{path}: not valid: {error}", field=str(path)) from None
    except RecursionError:
        raise BadRequest(f"{path}: nested too deeply", field=str(path)) from None
    if found is None:
        raise BadRequest(f"{path}: is empty", field=str(path))
    if not isinstance(found, dict):
        kind = "a list" if isinstance(found, list) else "a single value"
        raise BadRequest(f"{path}: must contain fields such as `description: …`, not {kind}", field=str(path))
    return found


def read_entries(path: Path) -> tuple[tuple[int, Any], ...]:
    """Return the entries of a YAML list, or of a file with one JSON value on each line, with their line numbers.

    Raises BadRequest if the file can't be read or parsed. The error names the file and, if possible, the line.
    """
    text = _text_of(path, MOST_BYTES_OF_ENTRIES)
    try:
        found = _yaml_entries(text, path) if path.suffix.lower() in (".yaml", ".yml") else _json_lines(text, path)
    except yaml.YAMLError as error:
        raise BadRequest(f"{path}: not valid YAML: {_where(error)}", field=str(path)) from None
    except RecursionError:
        raise BadRequest(f"{path}: nested too deeply", field=str(path)) from None
    if not found:
        raise BadRequest(f"{path}: is empty", field=str(path))
    return found


def _text_of(path: Path, most: int = MOST_BYTES) -> str:
    try:
        if path.stat().st_size > most:
            raise BadRequest(f"{path}: too large: the maximum is {most} bytes", field=str(path))
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadRequest(f"{path}: there is no such file", field=str(path)) from None
    except IsADirectoryError:
        raise BadRequest(f"{path}: is a folder: name the files in it", field=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: cannot be read: {error}", field=str(path)) from None


class _UniqueKeys(yaml.SafeLoader):
    """Load plain values only and reject duplicate keys. If two rules had the same key, one would silently be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """See base class."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} occurs twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


def _parsed(text: str, ending: str) -> object:
    match ending:
        case ".toml":
            return tomllib.loads(text)
        case ".json":
            return json.loads(text, object_pairs_hook=_unique)
        case _:
            return _yaml(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [name for name in dict(pairs) if sum(name == other for other, _ in pairs) > 1]:
        raise ValueError(f"the key {twice[0]!r} occurs twice")
    return dict(pairs)


def _yaml(text: str) -> object:
    loader = _UniqueKeys(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _yaml_entries(text: str, path: Path) -> tuple[tuple[int, Any], ...]:
    root = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # libyaml is three times as fast
    if root is None:
        return ()
    if not isinstance(root, yaml.SequenceNode):
        raise BadRequest(f"{path}:{root.start_mark.line + 1}: must be a list", field=str(path))
    loader = _UniqueKeys("")
    return tuple((node.start_mark.line + 1, loader.construct_document(node)) for node in root.value)


def _json_lines(text: str, path: Path) -> tuple[tuple[int, Any], ...]:
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(
        text.split("\n"), start=1
    ):  # `splitlines` also splits at characters inside of strings
        if not line.strip():
            continue
        try:
            found.append((number, json.loads(line, object_pairs_hook=_unique)))
        except ValueError as error:
            hint = "write one JSON value on each line, or a YAML list in a file with the suffix .yaml"
            raise BadRequest(f"{path}:{number}: not valid JSON: {error}: {hint}", field=str(path)) from None
    return tuple(found)


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())
