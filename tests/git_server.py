"""Git repositories for tests, and a server that gives them out over HTTPS as a hosting service does."""

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_PEOPLE: Final = {f"GIT_{who}_{what}": "ann" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_ALONE: Final = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, **_PEOPLE}


def git(folder: Path, *words: str, feed: bytes = b"") -> str:
    """Run Git in a folder without the settings of this machine, and return what it prints."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **_ALONE}, input=feed, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="surrogateescape").strip()


def repository(folder: Path, files: Mapping[str, bytes | str], *, branch: str = "main") -> str:
    """Make a bare repository at `folder`, with one commit of these files, and return the commit."""
    source = folder.with_name(f"{folder.name}-source")
    source.mkdir(parents=True)
    git(source, "init", "-q", "-b", branch)
    return committed(source, files, folder)


def committed(source: Path, files: Mapping[str, bytes | str], bare: Path) -> str:
    """Commit these files to the bare repository, and return the commit. A link is a text that begins with `->`."""
    for name, content in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str) and content.startswith("->"):
            path.symlink_to(content[2:])
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(source, "add", "-A", "-f")
    git(source, "commit", "-q", "-m", "a commit")
    if not bare.exists():
        git(source, "clone", "-q", "--bare", ".", str(bare))
    else:
        git(source, "push", "-q", "--all", str(bare))
    return git(source, "rev-parse", "HEAD")


def shown(bare: Path, revision: str, path: str) -> str:
    """Return a file in a revision of a repository."""
    return git(bare, "show", f"{revision}:{path}")


@dataclass(frozen=True)
class GitServer:
    """Gives out the repositories in a folder at `url`, as `git http-backend` does."""

    url: str
    asked: list[str]
    """The paths of the requests."""
    redirects: dict[str, str]
    """Paths that the server sends elsewhere."""
    away: threading.Event
    """While this is set, the server is overloaded."""
    refused: list[str]
    """The paths of the requests that it has refused because it was overloaded."""


@contextmanager
def serving(folder: Path, tls: ssl.SSLContext) -> Iterator[GitServer]:
    """Serve the repositories in the folder until the end of the block. The certificate is for `localhost`."""
    asked: list[str] = []
    redirects: dict[str, str] = {}
    away = threading.Event()
    refused: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked.append(parts.path)
            if away.is_set():
                refused.append(parts.path)
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            for prefix, target in redirects.items():
                if parts.path.startswith(prefix):
                    self.send_response(302)
                    self.send_header("Location", f"{target}{self.path.removeprefix(prefix)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            variables = {
                **os.environ,
                **_ALONE,
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": parts.path,
                "QUERY_STRING": parts.query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_USER": "ann",
            }
            done = subprocess.run(["git", "http-backend"], env=variables, input=body, check=False, capture_output=True)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n") if line)
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - as above

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield GitServer(
            url=f"https://localhost:{server.server_address[1]}",
            asked=asked,
            redirects=redirects,
            away=away,
            refused=refused,
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
