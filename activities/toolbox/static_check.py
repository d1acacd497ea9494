"""Check Python code written by a model before it runs, and reject code that does more than compute.

This check is a filter in front of the sandbox and never replaces it. Static analysis can't detect everything that
Python code may do. The check reports problems in a form that a model can act on.
"""

import ast
from collections.abc import Iterator
from typing import Final

MODULES: Final = frozenset(
    """
    os posix sys subprocess importlib imp builtins ctypes _ctypes cffi socket _socket ssl socketserver select selectors
    asyncio multiprocessing _posixsubprocess _thread threading concurrent signal pty tty termios fcntl resource mmap
    shutil pathlib glob tempfile fileinput io _io zipimport zipfile tarfile runpy code codeop pdb bdb gc inspect
    pickle _pickle shelve marshal dill cloudpickle dbm sqlite3 http urllib urllib3 requests httpx aiohttp ftplib smtplib
    poplib imaplib telnetlib nntplib xmlrpc webbrowser pkgutil pkg_resources site sysconfig atexit faulthandler platform
    pwd grp spwd crypt nis syslog _testcapi _xxsubinterpreters interpreters _interpreters linecache traceback trace
    """.split()  # noqa: SIM905 - as a list it would take two screens
)
"""Modules that provide access to the system, other programs, the network or the interpreter."""

NAMES: Final = frozenset(
    """
    eval exec compile __import__ open file input breakpoint globals locals vars help exit quit memoryview
    getattr setattr delattr __builtins__ __loader__ __spec__ __file__ __cached__
    """.split()  # noqa: SIM905 - as a list it would take two screens
)
"""Built-in names that provide access to other objects. `getattr` is allowed with a literal name."""

_REACHED: Final = frozenset(
    [
        "os",
        "sys",
        "posix",
        "subprocess",
        "builtins",
        "importlib",
        "ctypes",
        "socket",
        "shutil",
        "attrgetter",
        "methodcaller",
    ]
)
"""Names inside the allowed modules that are rejected, such as `random._os`."""

_FRAMES: Final = frozenset(
    [
        "gi_frame",
        "cr_frame",
        "ag_frame",
        "tb_frame",
        "f_back",
        "f_globals",
        "f_builtins",
        "f_locals",
        "f_code",
        "gi_code",
        "cr_code",
        "tb_next",
    ]
)
"""Attributes that lead from a value to the program's frames, and from there to the whole program."""

_FINE_DUNDERS: Final = frozenset(
    """
    __init__ __new__ __call__ __enter__ __exit__ __iter__ __next__ __len__ __contains__ __getitem__ __setitem__
    __delitem__ __repr__ __str__ __hash__ __bool__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __radd__ __sub__
    __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __pow__ __neg__ __abs__ __int__ __float__ __index__
    __post_init__ __name__ __doc__ __slots__ __all__ __match_args__ __annotations__ __future__ __main__
    """.split()  # noqa: SIM905 - as a list it would take two screens
)


def complaints(code: str) -> tuple[str, ...]:
    """Return the reasons why this code must not run. Each reason is one sentence with a line number. Return an empty
    tuple if the code may run.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        return (f"line {getattr(error, 'lineno', None) or 1}: this is not Python: {reason}",)
    nodes = list(ast.walk(tree))
    fine = {id(node.func) for node in nodes if isinstance(node, ast.Call) and _gets_by_written_name(node)}
    found = sorted({complaint for node in nodes if id(node) not in fine for complaint in _of(node)})
    return tuple(f"line {line}: {text}" for line, text in found)


def _of(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Import(names=names):
            yield from ((node.lineno, text) for alias in names for text in _module(alias.name))
        case ast.ImportFrom(module=module, names=names, level=level):
            yield from ((node.lineno, text) for text in _from(module or "", [alias.name for alias in names], level))
        case ast.MatchClass(kwd_attrs=names):
            yield from ((node.lineno, f"matching `{name}` is not allowed") for name in names if _leads_in(name))
        case ast.expr():
            yield from ((node.lineno, text) for text in _expression(node))


def _expression(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name(id="getattr"):
            yield "`getattr` is allowed only with a literal name: getattr(value, 'name')"
        case ast.Name(id=name) if name in NAMES or _leads_in(name):
            yield f"`{name}` is not allowed: compute with the arguments only"
        case ast.Attribute(attr=name) if _leads_in(name) or name.lstrip("_") in _REACHED:
            yield f"`.{name}` is not allowed: it leads into the interpreter or the system"
        case ast.Call(func=ast.Attribute(value=value, attr="format" | "format_map")) if not _is_written(value):
            yield "`.format` is allowed only on a literal text: use an f-string"
        case ast.Constant(value=str(text)) if _names_a_way_in(text):
            yield f"the text {text[:40]!r} is not allowed: it names an attribute that leads into the interpreter"


def _module(name: str) -> Iterator[str]:
    if (root := name.partition(".")[0]) in MODULES:
        yield f"importing `{root}` is not allowed: use modules that need no files, programs or network"


def _from(module: str, names: list[str], level: int) -> Iterator[str]:
    if level:
        yield "a relative import is not allowed: there is no package around this code"
    yield from _module(module)
    for name in names:
        if name in MODULES | NAMES or name.lstrip("_") in _REACHED or _leads_in(name):
            yield f"importing `{name}` from `{module}` is not allowed"


def _gets_by_written_name(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str()), *_]):
            return True
    return False


def _is_written(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.JoinedStr)


def _leads_in(name: str) -> bool:
    return name in _FRAMES or (name.startswith("__") and name.endswith("__") and name not in _FINE_DUNDERS)


def _names_a_way_in(text: str) -> bool:
    """Whether the text accesses a name such as `__class__` or `a.__class__`. If the text is used with `format`, the
    name must follow a dot.
    """
    if "{" in text:
        return any(f".{word}" in text for word in ("__", *_FRAMES))
    return any(_leads_in(part) for part in text.split("."))
