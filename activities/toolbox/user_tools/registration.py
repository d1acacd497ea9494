"""Convert the objects that a user can register as tools: functions, classes, and objects that implement the port."""

import inspect
from collections.abc import Container
from functools import partial
from typing import Any

from loom.activities.ports import Tool
from loom.activities.toolbox.user_tools.class_form import class_tool, has_class_form
from loom.activities.toolbox.user_tools.options import ToolOptions
from loom.activities.toolbox.user_tools.tool import user_tool
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import ToolSpec


def tool_of(tool: Any, options: ToolOptions, provided: Container[Any] = ()) -> Tool:
    """Return a function, class or object as a tool. Raises BadRequest for anything else.

    Parameters whose types are `provided` are injected. The model doesn't send them.
    """
    origin = origin_of(tool)
    if isinstance(getattr(tool, "spec", None), ToolSpec):
        if options:
            raise BadRequest(f"{origin} already has a spec: register it without options", field="tool")
        made: Tool = tool
        return made
    if has_class_form(tool):
        return class_tool(tool, origin, options, provided)
    if isinstance(tool, type) or not callable(tool):
        raise BadRequest(
            f"{origin} is neither a function nor a tool in class form, which has `name`, `description`,"
            " `args_schema` and `run`",
            field="tool",
        )
    return user_tool(tool, origin, options, provided)


def origin_of(thing: object) -> str:
    """Return the location where a function, class or object is defined: `my_tools.count_words (my_tools.py:12)`."""
    thing = thing.func if isinstance(thing, partial) else thing
    named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    module = named.__module__.rpartition("/")[2].removesuffix(".py")  # if an app is a file, its path is the module name
    name = f"{module}.{named.__qualname__}"
    try:
        code = inspect.unwrap(named)
        line = inspect.getsourcelines(code)[1]
        return f"{name} ({inspect.getsourcefile(code)}:{line})"
    except (OSError, TypeError):
        return name
