"""Load a user's app by name: `package.module:app` or `path/to/file.py:app`. You can omit `:app`. Functions are loaded
in the same way.

The working directory is searched after all installed packages, so files in it never shadow a library.
"""

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from loom.app.loom_app import LoomApp
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

FIELD: Final = "app"
_FILES: Final = "loom_app_files"
_OURS: Final = f"{Path(__file__).parent.parent}/"
_LIBRARIES: Final = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})


def load_app(name: str) -> LoomApp:
    """Load the app with this name.

    Raises BadRequest if the app can't be loaded. The error names the missing module or attribute, or the line that
    failed.
    """
    where, _, attribute = name.partition(":") if not name.endswith(".py") else (name, "", "")
    label = f"app {name!r}"
    if not where.strip():
        raise BadRequest(f"{label}: write `package.module:app` or `path/to/file.py:app`", field=FIELD)
    return _app(label, _loaded(label, where), attribute or "app")


def load_function(name: str, *, label: str, folder: Path) -> Callable[..., Any]:
    """Load the function with this name: `package.module:function` or `path/to/file.py:function`.

    A file's path is relative to `folder`. Errors begin with `label`. Raises BadRequest as `load_app` does.
    """
    where, _, attribute = name.partition(":")
    if not where.strip() or not attribute.strip():
        raise BadRequest(f"{label}: write `package.module:function` or `path/to/file.py:function`", field=FIELD)
    module = _loaded(label, str(folder / where) if where.endswith(".py") else where)
    found = _found(module, attribute)
    if not callable(found):
        what = f"has no {attribute!r}" if found is None else f"has a {type(found).__name__} as {attribute!r}"
        raise BadRequest(f"{label}: {_place(module)} {what}; name a function", field=FIELD)
    return cast("Callable[..., Any]", found)


def with_absolute_file(name: str) -> str:
    """Return the app's name in a form that also works in a process with a different working directory."""
    where, colon, attribute = name.partition(":")
    return f"{Path(where).expanduser().absolute()}{colon}{attribute}" if where.endswith(".py") else name


def project_of(name: str) -> Path:
    """Return the folder that contains the module of a loaded app."""
    where = name if name.endswith(".py") else name.partition(":")[0]
    place = where if where.endswith(".py") else getattr(sys.modules.get(where), "__file__", None)
    return Path(place).expanduser().absolute().parent if place else Path.cwd()


def search(folder: Path) -> None:
    """Add this folder to the end of the import path."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _loaded(label: str, where: str) -> ModuleType:
    return _file(label, Path(where)) if where.endswith(".py") else _module(label, where)


def _module(label: str, where: str) -> ModuleType:
    search(Path.cwd())
    try:
        return import_module(where)
    except ModuleNotFoundError as error:
        # If an import inside the app's module fails, report that error. The app's name is correct.
        if error.name is None or not (where == error.name or where.startswith(f"{error.name}.")):
            raise _failed(label, error) from None
        known = f"there is no module {error.name!r} in {Path.cwd()} or among the installed packages"
        raise BadRequest(f"{label}: {known}{_similar(error.name, _modules_beside(error.name))}", field=FIELD) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - errors in a user's module are reported with their line
        raise _failed(label, error) from None


def _file(label: str, path: Path) -> ModuleType:
    path = path.expanduser().absolute()
    if not path.is_file():
        beside = [each.name for each in path.parent.glob("*.py")]
        raise BadRequest(f"{label}: there is no file {path}{_similar(path.name, beside)}", field=FIELD)
    search(path.parent)
    key = f"{_FILES}.{path}"
    if key in sys.modules:
        return sys.modules[key]
    spec = spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise BadRequest(f"{label}: {path} cannot be loaded as Python", field=FIELD)
    module = module_from_spec(spec)
    sys.modules[key] = module  # set this before the module runs: dataclasses look up their own module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - errors in a user's file are reported with their line
        del sys.modules[key]
        raise _failed(label, error) from None
    return module


def _modules_beside(missing: str) -> list[str]:
    """Return the modules in the working directory that a misspelled name may mean."""
    package, dot, _ = missing.rpartition(".")
    folder = Path.cwd().joinpath(*package.split(".")) if package else Path.cwd()
    found = {each.stem for each in folder.glob("*.py")} | {each.parent.name for each in folder.glob("*/__init__.py")}
    return [f"{package}{dot}{name}" for name in found - {"__init__"}]


def _similar(name: str, known: Iterable[str]) -> str:
    hint = nearest(name, sorted(known), otherwise="")
    return f"; {hint}" if hint else ""


def _app(label: str, module: ModuleType, attribute: str) -> LoomApp:
    found = _found(module, attribute)
    if isinstance(found, LoomApp):
        return found
    apps = [key for key, value in vars(module).items() if isinstance(value, LoomApp)]
    what = f"has no {attribute!r}" if found is None else f"has a {type(found).__name__} as {attribute!r}, not a LoomApp"
    hint = f"did you mean `:{apps[0]}`?" if apps else "create one with `app = LoomApp()`"
    raise BadRequest(f"{label}: {_place(module)} {what}; {hint}", field=FIELD)


def _found(module: ModuleType, attribute: str) -> Any:
    found: Any = module
    for step in attribute.split("."):
        found = getattr(found, step, None)
    return found


def _place(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or module.__name__


def _failed(label: str, error: BaseException) -> BadRequest:
    """Return an error that names the last traceback line in the user's own code."""
    if isinstance(error, BadRequest):
        return BadRequest(f"{label}{_line_of(error)}: {error.message}", **error.context)
    if isinstance(error, SyntaxError) and error.filename:
        return BadRequest(f"{label}, {error.filename}:{error.lineno}: SyntaxError: {error.msg}", field=FIELD)
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return BadRequest(f"{label} failed while it was imported{_line_of(error)}: {text}", field=FIELD)


def _line_of(error: BaseException) -> str:
    """Return the file and line of the last traceback entry in the user's own code, or else in a library."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<", _OURS))]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f", {own[-1].filename}:{own[-1].lineno}" if own else ""
