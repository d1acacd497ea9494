"""Attacks on the sandbox, each through the real tool in the real sandbox; `docs/attacks.md` is the list for people."""

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from loom.activities.adapters.sandbox.bubblewrap import find_program, find_sandbox
from loom.activities.adapters.sandbox.hidden_paths import SYSTEM, TEMPORARIES
from loom.activities.adapters.sandbox.namespaces import Bubblewrap
from loom.activities.toolbox.built_in.shell import Sandbox
from tests.integration.attacks.ordinary_user import NOBODY, as_nobody, interpreter
from tests.integration.attacks.sandbox_attacks import IN_BASH, IN_PYTHON, furnish, outcome_of

_ADD_KEY = {"x86_64": 248, "aarch64": 217}
_SESSION = -3


@pytest.fixture(scope="module")
def outside(place: Path) -> Iterator[dict[str, str]]:
    """What a command might reach outside: servers, a process, a key, a secret in the environment."""
    with ExitStack() as stack:
        tcp, udp, abstract, by_path = (
            stack.enter_context(socket.socket(family, kind))
            for family, kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
            )
        )
        name = f"loom-attacked-{os.getpid()}"
        path = str(place / "workspace/service.socket")
        for server, address in (
            (tcp, ("127.0.0.1", 0)),
            (udp, ("127.0.0.1", 0)),
            (abstract, f"\0{name}"),
            (by_path, path),
        ):
            server.bind(address)
        for server in (tcp, abstract, by_path):
            server.listen()
        victim = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(victim.kill)
        os.environ["LOOM_ATTACKED"] = "secret"
        stack.callback(os.environ.pop, "LOOM_ATTACKED")
        yield {
            "PORT": str(tcp.getsockname()[1]),
            "UDP": str(udp.getsockname()[1]),
            "ABSTRACT": name,
            "SOCKET": path,
            "VICTIM": str(victim.pid),
            "KEY": str(_key()),
            "PID": str(os.getpid()),
        }
        assert victim.poll() is None
        assert select.select([tcp, udp, abstract, by_path], [], [], 0) == ([], [], [])  # nobody came, nothing arrived


def _key() -> int:
    """A key in this process's session keyring; 1 where the kernel has no keyrings."""
    number = _ADD_KEY.get(os.uname().machine, 0)
    made = ctypes.CDLL(None).syscall(number, b"user", b"loom-attacked", b"secret", 6, _SESSION)
    return made if made > 0 else 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _scene(tmp_path_factory.mktemp("attacks").resolve())


@pytest.fixture(scope="module")
def here(place: Path) -> tuple[Sandbox | None, str]:
    return find_sandbox("on", [place / "home"])


def _scene(root: Path) -> Path:
    (root / "home").mkdir()
    (root / "home/secret").write_text("secret")
    (root / "other").mkdir()
    (root / "other/secret").write_text("secret")
    (root / "workspace").mkdir()
    furnish(root / "workspace")
    return root


@pytest.mark.parametrize("name", [*IN_BASH, *IN_PYTHON])
async def test_the_sandbox_withstands(
    name: str, place: Path, outside: Mapping[str, str], here: tuple[Sandbox | None, str]
) -> None:
    sandbox, why_not = here
    before = _traces(place)
    output = await outcome_of(name, sandbox, why_not, place / "workspace", {**outside, "HOME": str(place / "home")})
    assert _is_held(output), output
    assert _traces(place) == before


def _is_held(output: str) -> bool:
    """It was tried, in full, and did not get out; the sandbox itself must not have failed to start."""
    return "ESCAPED" not in output and output.rstrip().endswith("tried")


async def test_a_command_sees_the_system_and_its_workspace_alone(place: Path) -> None:
    """Whatever this machine has at its root, and whoever may read it: nothing else is there."""
    system = {Path(name).parts[1] for name in SYSTEM}
    base = Path(sys.base_prefix).resolve()
    own = [(place / "workspace").parts, *([] if base.is_relative_to("/usr") else [base.parts])]
    seen = (await _found(place, "find / -mindepth 1 -maxdepth 1 -printf '%f\\n'")).split()
    assert set(seen) <= system | {"proc", "dev", "tmp", "var"} | {parts[1] for parts in own}
    for parts in own:
        for depth in range(2, len(parts)):
            above = Path(*parts[:depth])
            beside = {each[depth] for each in own if each[:depth] == parts[:depth]}
            temporary = {each.name for each in TEMPORARIES if each.parent == above}
            assert set((await _found(place, f"ls -A {above}")).split()) <= beside | temporary


async def test_only_a_setting_opens_another_folder_and_keeps_hidden_what_is_hidden(tmp_path: Path) -> None:
    place = tmp_path.resolve()
    for name in ("workspace", "tools/bin", "tools/state", "other"):
        (place / name).mkdir(parents=True)
        (place / name / "file").write_text(name)
    sandbox = Bubblewrap(find_program() or "", hidden=[place / "tools/state"], opened=[place / "tools"])
    words = "cat ../tools/bin/file; ls -A ../tools/state; echo x 2> /dev/null > ../tools/bin/file || echo kept; ls .."
    assert await _found(place, words, sandbox) == "tools/binkept\ntools\nworkspace\n"


async def test_private_settings_of_the_system_are_hidden_from_a_worker_that_may_read_them(place: Path) -> None:
    assert await _found(place, "find /etc -type f ! -perm -o=r -readable; find /etc -type d ! -perm -o=r") == ""


async def _found(place: Path, command: str, sandbox: Bubblewrap | None = None) -> str:
    chosen = sandbox or Bubblewrap(find_program() or "", hidden=[place / "home"])
    finished = await chosen.run(
        ["bash", "-c", command],
        workspace=place / "workspace",
        timeout=60,
        max_output=9999,
        on_output=lambda _text: None,
    )
    return finished.output


def _traces(place: Path) -> list[str]:
    """What attacks leave behind where one works."""
    folders = (place, place.parent, *map(Path, ("/", "/etc", "/usr", "/var", "/opt", "/srv", "/tmp")))
    found = [str(path) for folder in folders for path in folder.glob("loom-*was*")]
    return found + [Path("/proc/sys/kernel", name).read_text() for name in ("core_pattern", "pid_max")]


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_the_sandbox_withstands_them_all_when_the_worker_is_an_ordinary_user(outside: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        root.chmod(0o755)
        if (program := interpreter(root)) is None:
            pytest.skip("no interpreter here that an ordinary user may start")
        _scene(root)
        service = stack.enter_context(socket.socket(socket.AF_UNIX))
        service.bind(str(root / "workspace/service.socket"))
        service.listen()
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        words = json.dumps({**outside, "HOME": str(root / "home"), "SOCKET": service.getsockname()})
        table = [
            program,
            "-m",
            "tests.integration.attacks.sandbox_attacks",
            str(root / "workspace"),
            str(root / "home"),
            words,
        ]
        results: dict[str, str] = json.loads(subprocess.check_output(table, timeout=100, **as_nobody(root)))
    assert {name: output for name, output in results.items() if not _is_held(output)} == {}
    assert list(results) == [*IN_BASH, *IN_PYTHON]
