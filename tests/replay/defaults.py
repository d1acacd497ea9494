"""The numbers and defaults on which running work depends: limits, time-outs, retry policies, default values of fields,
settings, and the effects of built-in tools.

No history holds them, so that a change would pass every replay. They are kept in `defaults.json`. After a change on
purpose, run `python -m tests.replay.defaults`, and review how the file has changed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from importlib import import_module
from inspect import isclass
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, Final

from temporalio.common import RetryPolicy

import loom.activities.effects
import loom.activities.leases
import loom.domain
import loom.workflows
from loom.activities.adapters.shell.parser import BashParser
from loom.activities.toolbox.built_in.all_tools import built_in_tools
from loom.composition.settings import Settings

DEFAULTS: Final = Path(__file__).parent / "defaults.json"
_PLAIN: Final = (int, float, timedelta, Enum, RetryPolicy)


def defaults() -> Mapping[str, Mapping[str, str]]:
    """Return the values as text, by module, class, or subject."""
    modules = [import_module(each.name) for package in (loom.domain, loom.workflows) for each in _modules(package)]
    modules += [loom.activities.effects, loom.activities.leases]
    found = {module.__name__: dict(_constants(module)) for module in modules}
    found |= {f"{kind.__module__}.{kind.__name__}": dict(_fields(kind)) for kind in _dataclasses(modules)}
    found["settings"] = {name: str(field.default) for name, field in sorted(Settings.model_fields.items())}
    tools = built_in_tools(sandbox=None, shell_parser=BashParser(), tool_timeout=1)
    found["effects of built-in tools"] = {name: tool.spec.effect.value for name, tool in tools.items()}
    return {name: values for name, values in sorted(found.items()) if values}


def _modules(package: ModuleType) -> Iterator[Any]:
    return walk_packages(package.__path__, f"{package.__name__}.")


def _constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name, value in sorted(vars(module).items()):
        is_own = not isclass(value) and name.isupper() and name in getattr(module, "__annotations__", {})
        if is_own and (isinstance(value, _PLAIN) or _is_config(value)):
            yield name, _text(value)


def _is_config(value: Any) -> bool:
    """Whether this is a set of options, such as those of an activity."""
    return isinstance(value, dict) and any(isinstance(each, timedelta) for each in value.values())


def _dataclasses(modules: list[ModuleType]) -> Iterator[type]:
    for module in modules:
        for value in vars(module).values():
            if isclass(value) and is_dataclass(value) and value.__module__ == module.__name__:
                yield value


def _fields(kind: Any) -> Iterator[tuple[str, str]]:
    for field in fields(kind):
        if field.default is not MISSING and not callable(field.default):
            yield field.name, _text(field.default)
        elif field.default_factory is not MISSING:
            yield field.name, _text(field.default_factory())


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(each)}" for name, each in sorted(value.items()))
    return str(value)


if __name__ == "__main__":
    DEFAULTS.write_text(json.dumps(defaults(), indent=1, ensure_ascii=False) + "\n")
