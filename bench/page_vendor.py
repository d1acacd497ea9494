"""Fetch the libraries of the web page from npm, as `loom/serve/page/vendor/VERSIONS` lists them: `make page-vendor`.

Browsers don't know where a library that is imported by its name is, so such imports become paths. Nothing else changes.
"""

import hashlib
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VENDOR: Final = Path(__file__).parent.parent / "loom" / "serve" / "page" / "vendor"
VERSIONS: Final = VENDOR / "VERSIONS"
PATHS: Final = {
    '"preact"': '"./preact.js"',
    '"preact/hooks"': '"./hooks.js"',
    '"@preact/signals-core"': '"./signals-core.js"',
}


@dataclass(frozen=True, slots=True)
class Vendored:
    """A line of VERSIONS: one file of a package."""

    file: str
    package: str
    version: str
    path: str
    """Where the file is in the package."""
    sha256: str
    """The digest of the file in the package."""


def vendored() -> list[Vendored]:
    """Return the files that VERSIONS lists."""
    lines = VERSIONS.read_text().splitlines()
    return [Vendored(*line.split()) for line in lines if line and not line.startswith("#")]


def with_paths(source: bytes) -> bytes:
    """Return a module that imports others by their path instead of their name."""
    for name, path in PATHS.items():
        source = source.replace(b"from" + name.encode(), b"from" + path.encode())
    return source


def with_names(source: bytes) -> bytes:
    """Return the module as it is in its package."""
    for name, path in PATHS.items():
        source = source.replace(b"from" + path.encode(), b"from" + name.encode())
    return source


def main() -> None:
    """Write each file, and its digest into VERSIONS."""
    heading = [line for line in VERSIONS.read_text().splitlines() if line.startswith("#")]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for each in vendored():
            packed = ("npm", "pack", "--silent", f"{each.package}@{each.version}")
            name = subprocess.run(packed, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
            with tarfile.open(Path(folder) / name) as archive:
                found = archive.extractfile(f"package/{each.path}")
                assert found is not None, each
                source = found.read()
            (VENDOR / each.file).write_bytes(with_paths(source))
            lines.append(f"{each.file} {each.package} {each.version} {each.path} {hashlib.sha256(source).hexdigest()}")
    VERSIONS.write_text("\n".join([*heading, *lines]) + "\n")


if __name__ == "__main__":
    main()
