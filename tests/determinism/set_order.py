"""A mypy plugin: workflow and domain code may not depend on the order of a set, which differs from process to process.

Iterating over a set, popping from one, or passing one to anything that may iterate over it is an error. Fine are `len`,
membership, `sorted` without a key, comprehensions inside it or that make another set, and parameters typed as sets.
"""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from mypy.errorcodes import ErrorCode
from mypy.nodes import ArgKind, CallExpr, MypyFile, SetExpr
from mypy.options import Options
from mypy.plugin import FunctionContext, MethodContext, Plugin
from mypy.plugins.default import DefaultPlugin
from mypy.types import AnyType, CallableType, Instance, Overloaded, ProperType, Type, TypeVarType, UnionType
from mypy.types import get_proper_type as proper

SET_ORDER: Final = ErrorCode("set-order", "Depends on the order of a set", "General")
GUARDED: Final = ("loom.domain.", "loom.workflows.", "loom.activities.failures")
SETS: Final = ("builtins.set", "builtins.frozenset")
ABSTRACT_SETS: Final = ("typing.AbstractSet", "typing.MutableSet")
"""Not what derives from them: the keys of a dict have an order."""
ORDER_FREE: Final = (
    "builtins.all",
    "builtins.any",
    "builtins.bool",
    "builtins.frozenset",
    "builtins.isinstance",
    "builtins.len",
    "builtins.set",
    "dataclasses.replace",  # mypy holds each value against its field
)
ORDER_FREE_WITHOUT_KEY: Final = ("builtins.max", "builtins.min", "builtins.sorted")
"""With a key, equals come in the order of the set."""
TAKES_ONE_OUT: Final = ("__iter__", "pop")

ITERATES: Final = "builtins.list.__iadd__"
"""An operator that goes over what stands on its right."""


class SetOrder(Plugin):
    """See the module's docstring. A call has one hook: this one goes on to that of mypy itself."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._mypy = DefaultPlugin(options)

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """See base class; called for functions and constructors."""
        inner = self._mypy.get_function_hook(fullname)
        if fullname in ORDER_FREE:
            return inner

        def hook(context: FunctionContext) -> Type:
            has_key = any("key" in names for names in context.arg_names)
            if has_key or fullname not in ORDER_FREE_WITHOUT_KEY:
                _check_arguments(context)
            return inner(context) if inner else context.default_return_type

        return hook

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """See base class; a `for` calls `__iter__`."""
        inner = self._mypy.get_method_hook(fullname)
        method = fullname.rpartition(".")[2]

        def hook(context: MethodContext) -> Type:
            if not _is_set(context.type):
                _check_arguments(context)
                if fullname == ITERATES and any(_is_set(kind) for kinds in context.arg_types for kind in kinds):
                    _refuse(context)
            elif method in TAKES_ONE_OUT:
                _refuse(context)
            return inner(context) if inner else context.default_return_type

        return hook


def plugin(version: str) -> type[Plugin]:
    """Where mypy begins."""
    return SetOrder


def _check_arguments(context: FunctionContext | MethodContext) -> None:
    given = [
        (number, context.arg_kinds[number][place] is ArgKind.ARG_STAR)
        for number, kinds in enumerate(context.arg_types)
        for place, kind in enumerate(kinds)
        if _is_set(kind)
    ]
    if not given or isinstance(context.context, SetExpr) or not _guarded(context):
        return
    if any(is_spread or not _takes_sets(context, number) for number, is_spread in given):
        _refuse(context)


def _refuse(context: FunctionContext | MethodContext) -> None:
    if _guarded(context) and not _order_is_lost(context):
        context.api.fail("Depends on the order of a set: sort it first", context.context, code=SET_ORDER)


def _guarded(context: FunctionContext | MethodContext) -> bool:
    return f"{_module(context).fullname}.".startswith(GUARDED)


def _module(context: FunctionContext | MethodContext) -> MypyFile:
    module: MypyFile = context.api.tree  # type: ignore[attr-defined] # of every type checker
    return module


def _order_is_lost(context: FunctionContext | MethodContext) -> bool:
    """Whether the set is what a comprehension goes over that ends in a set, or in `sorted` and the like."""
    return (context.context.line, context.context.column) in _losses(_module(context).path)


@cache
def _losses(path: str) -> frozenset[tuple[int, int]]:
    """Where in a file a comprehension goes over something in an order that nobody sees."""
    found: list[ast.comprehension] = []
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        match node:
            case ast.SetComp(generators=generators):
                found += generators
            case ast.Call(func=ast.Name(id=name), keywords=keywords, args=arguments):
                has_key = any(keyword.arg == "key" for keyword in keywords)
                free = ORDER_FREE if has_key else (*ORDER_FREE, *ORDER_FREE_WITHOUT_KEY)
                if f"builtins.{name}" in free:
                    found += [
                        g for a in arguments if isinstance(a, (ast.GeneratorExp, ast.ListComp)) for g in a.generators
                    ]
            case _:
                pass
    return frozenset((generator.iter.lineno, generator.iter.col_offset) for generator in found)


def _takes_sets(context: FunctionContext | MethodContext, number: int) -> bool:
    """Whether a set stays one as this argument: the parameter is a set, or says nothing of what it is."""
    if not isinstance(context.context, CallExpr):
        return True  # a display, an item that is set, an operator
    callee = proper(context.api.get_expression_type(context.context.callee))
    forms = callee.items if isinstance(callee, Overloaded) else [callee]
    kinds = [
        proper(form.arg_types[number])
        for form in forms
        if isinstance(form, CallableType) and form.arg_names == context.callee_arg_names
    ]
    return any(isinstance(kind, TypeVarType) or _is_set(kind) for kind in kinds)


def _is_set(given: Type) -> bool:
    kind: ProperType = proper(given)
    if isinstance(kind, UnionType):
        return any(_is_set(item) for item in kind.items)
    if isinstance(kind, TypeVarType):
        return _is_set(kind.upper_bound)
    if isinstance(kind, AnyType) or not isinstance(kind, Instance):
        return False
    return kind.type.fullname in ABSTRACT_SETS or any(base.fullname in SETS for base in kind.type.mro)
