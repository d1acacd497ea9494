"""Determine the files that common programs read and write, from the words of their commands.

`_PROGRAMS` lists the programs whose options and operands alone show their files. `_SPECIAL` has a function for each
program that needs its own rule, such as `tar` or `sed`. For all other programs, only options such as `--output` count.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from loom.domain.permissions import sed
from loom.domain.permissions.command_words import (
    FIND_WRITES,
    Arguments,
    Words,
    arguments_of,
    git_subcommand_at,
    program_of,
)
from loom.domain.permissions.subjects import WRITING_REDIRECTS

_Tool: TypeAlias = Literal["read_file", "write_file", "delete_file"]


@dataclass(frozen=True, slots=True)
class Use:
    """One access to a file."""

    tool: _Tool
    """The tool whose rules apply."""
    path: str | None
    """The path as written, or None if the path is known only when the command runs."""
    only_existing: bool = False
    """Whether the word counts as a path only if such a file exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Program:
    """What a program reads and writes. Options are separated by spaces."""

    reads: bool = False
    """Whether the program reads its operands."""
    writes: bool = False
    """Whether the program writes its operands."""
    script: str = ""
    """The options that replace the first operand if that operand is a script."""
    in_place: str = ""
    """Options that make the program write to the files that it reads."""
    outputs: str = ""
    """Options whose value is a file that the program writes."""
    inputs: str = ""
    """Options whose value is a file that the program reads."""
    values: str = ""
    """Other options with a value."""
    writes_others: bool = False
    """Whether the program also writes files that the words don't name."""

    @property
    def valued(self) -> str:
        """All options with a value."""
        return f"{self.outputs} {self.inputs} {self.values} {self.script}"


_READS: Final = _Program(reads=True)
_WRITES: Final = _Program(writes=True)
_EDITS: Final = _Program(reads=True, writes=True)
_SCRIPTED: Final = _Program(reads=True, script="-e -f --regexp --file --expression")

_PROGRAMS: Final[Mapping[str, _Program]] = {
    **dict.fromkeys(
        """
        cat tac head tail wc cut paste rev fold expand column diff cmp comm join nl od hexdump strings base64 base32
        md5sum sha1sum sha256sum sha512sum cksum source . bat batcat zcat zless zgrep view file python python3
        node php lua bash sh zsh dash pr envsubst more most
        """.split(),  # noqa: SIM905 - as a list it would take half a screen
        _READS,
    ),
    **dict.fromkeys(
        """
        tee touch rm rmdir unlink shred srm mkdir mkfifo mknod chmod chown chgrp sponge ar ranlib strip
        """.split(),  # noqa: SIM905 - as a list it would take half a screen
        _WRITES,
    ),
    **dict.fromkeys(("vim", "vi", "nvim", "nano", "emacs", "ed", "ex", "sqlite3"), _EDITS),
    **dict.fromkeys(("grep", "egrep", "fgrep", "rg", "ag", "ack", "jq"), _SCRIPTED),
    "truncate": _Program(writes=True, inputs="-r --reference", values="-s --size"),
    "sort": _Program(
        reads=True,
        outputs="-o --output",
        inputs="--files0-from --random-source",
        values="-k -t -S -T --key --field-separator --buffer-size --temporary-directory --parallel --batch-size",
    ),
    "shuf": _Program(
        reads=True, outputs="-o --output", inputs="--random-source", values="-n -i --head-count --input-range"
    ),
    "less": _Program(reads=True, outputs="-o -O --log-file --LOG-FILE"),
    "split": _Program(reads=True, writes_others=True),
    "csplit": _Program(reads=True, writes_others=True),
    "iconv": _Program(reads=True, outputs="-o --output", values="-f -t --from-code --to-code"),
    "yq": _Program(reads=True, script="-e --expression --from-file", in_place="-i --inplace --in-place"),
    "perl": _Program(reads=True, script="-e -E", in_place="-i", values="-I -M -m -F -x"),
    "ruby": _Program(reads=True, script="-e", in_place="-i", values="-I -r -C"),
    "openssl": _Program(
        reads=True,
        outputs="-out -keyout -CAserial -writerand -outdir -sess_out -keylogfile -msgfile",
        inputs="-in -inkey -key -CA -CAkey -config -content",
    ),
    "gpg": _Program(
        reads=True,
        outputs="-o --output --logger-file --log-file --status-file --attribute-file",
        values="-r --recipient -u --local-user",
    ),
    "age": _Program(reads=True, outputs="-o --output", values="-r -i -R --recipient --identity"),
    "ssh-keygen": _Program(outputs="-f", values="-t -b -C -N -P"),
    "pandoc": _Program(reads=True, outputs="-o --output --extract-media --log", values="-f -t --from --to"),
    **dict.fromkeys(("strace", "ltrace", "time", "tcpdump"), _Program(outputs="-o -w --output")),
    **dict.fromkeys(("pg_dump", "pg_dumpall"), _Program(outputs="-f --file", values="-U -h -p -d -t -n")),
    "psql": _Program(outputs="-o -L --output --log-file", inputs="-f --file", values="-U -h -p -d -c -v"),
    "mysqldump": _Program(outputs="-r --result-file"),
    "rename": _Program(writes_others=True),
    "crontab": _READS,
}

IS_CODE: Final = frozenset(
    ["python", "python3", "node", "php", "lua", "bash", "sh", "zsh", "dash", "perl", "ruby", "source", "."]
)
"""Programs that run code, which may read and write any file that a word names."""
ONLY_READS: Final = frozenset(
    name
    for name, program in _PROGRAMS.items()
    if program in (_READS, _SCRIPTED) and name not in IS_CODE | {"shuf", "view", "file", "crontab"}
)
"""Programs that write no file that a word names."""

_OUTPUT_OPTIONS: Final = frozenset(
    ["--output", "--output-file", "--out", "--out-file", "--outfile", "--outFile", "--output-document", "--out-dir"]
)
"""Options that make programs that aren't listed write a file."""
_PATH: Final = re.compile(r"[\w@%+~/.,{}-]*[./][\w@%+~/.,{}-]*")
"""Matches the values of these options, except names of formats, such as `json`."""
_READ_OF_VALUE: Final = re.compile(r"(?:[^@=]*=)?[@<](.+)", re.DOTALL)

_REDIRECTS: Final[Mapping[str, _Tool]] = {
    "<": "read_file",
    **dict.fromkeys(WRITING_REDIRECTS, "write_file"),
}
_Uses: TypeAlias = Iterator[Use]


def uses_of(words: Words) -> _Uses:
    """Yield every file access that a command's words show."""
    first = words[0] or ""
    if first in _REDIRECTS and len(words) > 1:
        yield Use(_REDIRECTS[first], words[1])
        return
    name = program_of(words)
    if name in _SPECIAL:
        yield from (each for each in _SPECIAL[name](words) if each.path != "-")
    elif name in _PROGRAMS:
        yield from (each for each in _of_program(name, words) if each.path not in ("-", ""))
    else:
        yield from _of_unknown(words)


def _read(*paths: str | None) -> _Uses:
    yield from (Use("read_file", path) for path in paths)


def _write(*paths: str | None) -> _Uses:
    yield from (Use("write_file", path) for path in paths)


def _of_program(name: str, words: Words) -> _Uses:
    program = _PROGRAMS[name]
    arguments = arguments_of(words, program.valued)
    yield from _write(*arguments.values(*program.outputs.split()))
    yield from _read(*arguments.values(*program.inputs.split()))
    operands = list(arguments.operands)
    if program.script and not arguments.has(*program.script.split()):
        operands = operands[1:]
    if name in _RECURSIVE or (
        (program is _SCRIPTED or name == "diff") and arguments.has("-r", "-R", *_RECURSIVE_OPTIONS)
    ):
        operands.extend(_RECURSION)
    # The value of an unknown option may be a file.
    attached = [value for option, value in arguments.options if option not in program.valued.split() and value]
    if program.reads:
        yield from _read(*operands, *attached)
    if program.writes or arguments.has(*program.in_place.split()):
        yield from _write(*operands)
    if "http.server" in words:
        yield from _read(*_RECURSION)
    unpacks = name == "ar" and "x" in ((words[1] if len(words) > 1 else None) or "")
    if program.writes_others or unpacks or (name in _EDITORS and _runs_script(words)):
        yield from _write(None)


_RECURSION: Final = (None,)
"""The files in folders, which the words don't name."""
_RECURSIVE: Final = frozenset({"rg", "ag", "ack"})
_RECURSIVE_OPTIONS: Final = ("--recursive", "--dereference-recursive")
_EDITORS: Final = frozenset({"vim", "vi", "nvim", "ex", "view"})


def _runs_script(words: Words) -> bool:
    """Whether an editor receives commands. Such commands may write any file."""
    return any(word is not None and re.match(r"-[cS]|--cmd|\+\D", word) for word in words[1:])


def _of_unknown(words: Words) -> _Uses:
    for word, following in pairwise((*words[1:], "")):
        option, equals, value = (word or "").partition("=")
        path = value if equals else following
        if option in _OUTPUT_OPTIONS and (path is None or _PATH.fullmatch(path)):
            yield from _write(path)


def _of_compiler(words: Words) -> _Uses:
    """Handle compilers. Their long options have one dash and aren't clusters of short options."""
    for word, following in pairwise((*words[1:], None)):
        if word is not None and word.startswith("-o"):
            yield from _write(word[2:] or following)
    yield from _of_unknown(words)


def _of_filter(words: Words) -> _Uses:
    """Handle `uniq` and `xxd`, which write their second operand."""
    valued = (
        "-c -g -l -n -o -s -R" if program_of(words) == "xxd" else "-f -s -w --skip-fields --skip-chars --check-chars"
    )
    operands = arguments_of(words, valued).operands
    yield from _read(*operands[:1])
    yield from _write(*operands[1:2])


def _of_sed(words: Words) -> _Uses:
    arguments = arguments_of(words, "-e -f -l --expression --file --line-length")
    scripts = list(arguments.values("-e", "--expression"))
    files = list(arguments.operands)
    yield from _read(*arguments.values("-f", "--file"))
    if not scripts and not arguments.has("-f", "--file"):
        scripts, files = files[:1], files[1:]
    yield from _read(*files)
    if any(option == "-i" or _is_in_place(option) for option, _ in arguments.options):
        yield from _write(*files)
    for script in scripts:
        yield from _write(*((None,) if script is None or sed.runs_something(script) else sed.written_by(script)))


def _is_in_place(option: str) -> bool:
    """Whether an option of `sed` is `--in-place`, in full or abbreviated."""
    return len(option) > 3 and "--in-place".startswith(option)


_AWK_WRITES: Final = re.compile(r"\bprintf?\b[^;{}\n]*?>>?\s*(?:\"([^\"]*)\"\s*(?=$|[;}\n]))?")
_AWK_RUNS: Final = re.compile(r"\bsystem\s*\(|\|&?\s*(?:\"|\w)(?!\|)")


def _of_awk(words: Words) -> _Uses:
    arguments = arguments_of(words, "-F -v -f -i -e -E --field-separator --assign --file --include --source --exec")
    scripts = list(arguments.values("-e", "--source"))
    files = list(arguments.operands)
    yield from _read(*arguments.values("-f", "-E", "--file", "--exec"))
    if not scripts and not arguments.has("-f", "-E", "--file", "--exec"):
        scripts, files = files[:1], files[1:]
    yield from _read(*files)
    if "inplace" in arguments.values("-i", "--include"):
        yield from _write(*files)
    yield from _write(*(value for option, value in arguments.options if option in _AWK_OUTPUTS and value))
    for script in scripts:
        if script is None or _AWK_RUNS.search(script.replace("||", "")):
            yield from _write(None)
        else:
            yield from _write(*(match[1] for match in _AWK_WRITES.finditer(script)))


_AWK_OUTPUTS: Final = frozenset({"--dump-variables", "--pretty-print", "--profile"})


def _of_copy(words: Words) -> _Uses:
    """Handle copying. A file that is copied into a folder keeps its name."""
    arguments = arguments_of(words, _COPY_VALUES.get(program_of(words), "-t --target-directory -S --suffix"))
    yield from _write(*arguments.values("--log-file", "--write-batch", "--only-write-batch"))
    targets = [folder for folder in arguments.values("-t", "--target-directory") if folder != ""]
    sources = list(arguments.operands)
    if not targets:
        targets = [sources.pop() if sources else None]
    is_recursive = bool(arguments.has("-r", "-R", "-a", "--recursive", "--archive", "--files-from"))
    yield from _read(*sources, *_RECURSION if is_recursive else ())
    if program_of(words) == "mv" or arguments.has("--remove-source-files"):
        yield from _write(*sources)
    yield from _write(*targets, *_RECURSION if is_recursive else ())
    for word in sources:
        name = None if word is None else word.rstrip("/").rpartition("/")[2]
        yield from _write(*(None if name is None or target is None else f"{target}/{name}" for target in targets))


_COPY_VALUES: Final[Mapping[str, str]] = {
    "install": "-t --target-directory -S --suffix -m --mode -o --owner -g --group",
    "rsync": "-e --rsh --exclude --include --exclude-from --log-file --write-batch --only-write-batch -f --filter",
    "scp": "-P -i -o -F -c -J -l -S",
}


def _of_dd(words: Words) -> _Uses:
    for word in words[1:]:
        name, _, value = (word or "").partition("=")
        if word is None or name == "of":
            yield from _write(value if word else None)
        elif name == "if":
            yield from _read(value)


def _of_find(words: Words) -> _Uses:
    for word, following in pairwise((*words[1:], None)):
        if word in FIND_WRITES:
            yield from _write(following)
    if "-delete" in words:
        yield from _write(None)
    if "-files0-from" in words:
        yield from _read(None)


_TAR_VALUES: Final = "fbCTXgKNVIFLH"


def _of_tar(words: Words) -> _Uses:
    """Handle `tar`. Its first word may be a cluster of options without a dash, followed by their values in order."""
    first = (words[1] if len(words) > 1 else "") or ""
    if first and not first.startswith("-"):
        values = [f"-{letter}" for letter in first if letter in _TAR_VALUES]
        flags = "".join(letter for letter in first if letter not in _TAR_VALUES)
        given = words[2 : 2 + len(values)]
        paired = [word for pair in zip(values, given, strict=False) for word in pair]
        words = ("tar", f"-{flags or '-'}", *paired, *words[2 + len(values) :])
    valued = (
        " ".join(f"-{letter}" for letter in _TAR_VALUES)
        + " --file --directory --exclude --transform --strip-components"
    )
    arguments = arguments_of(words, f"{valued} --index-file --listed-incremental")
    archives = list(arguments.values("-f", "--file"))
    yield from _write(*arguments.values("-g", "--listed-incremental", "--index-file"))
    if arguments.has(
        "-c", "-r", "-u", "-A", "--create", "--append", "--update", "--catenate", "--concatenate", "--delete"
    ):
        yield from _write(*archives)
        yield from _read(*arguments.operands, *_RECURSION)
        if arguments.has("--remove-files"):
            yield from _write(*arguments.operands)
        return
    yield from _read(*archives)
    if arguments.has("-x", "--extract", "--get") and not arguments.has("-O", "--to-stdout"):
        yield from _write(*arguments.values("-C", "--directory"), None)


def _of_zip(words: Words) -> _Uses:
    arguments = arguments_of(words, "-b -t -n -x -i -O --out --temp-path")
    yield from _write(*arguments.operands[:1], *arguments.values("-O", "--out"))
    yield from _read(*arguments.operands[1:], *_RECURSION if arguments.has("-r", "-@", "--recurse-paths") else ())


def _of_7z(words: Words) -> _Uses:
    action, *operands = arguments_of(words).operands or (None,)
    if action in ("x", "e"):
        yield from _read(*operands[:1])
        yield from _write(None)
    elif action in ("l", "t"):
        yield from _read(*operands)
    else:
        yield from _write(*operands[:1])
        yield from _read(*operands[1:])


def _of_unzip(words: Words) -> _Uses:
    arguments = arguments_of(words, "-d -x -P")
    yield from _read(*arguments.operands[:1])
    if not arguments.has("-l", "-t", "-v", "-p", "-c", "-Z", "-z"):
        yield from _write(*arguments.values("-d"), None)


def _of_gzip(words: Words) -> _Uses:
    """Handle compressors, which replace their operands with files that have other names."""
    arguments = arguments_of(words, "-S --suffix -o")
    operands = arguments.operands
    yield from _read(*operands)
    yield from _write(*arguments.values("-o"))
    if arguments.has("-c", "--stdout", "--to-stdout", "-t", "--test", "-l", "--list"):
        return
    ending = {"gunzip": "gz", "bunzip2": "bz2", "bzip2": "bz2", "unxz": "xz", "xz": "xz", "zstd": "zst"}
    last = "." + ending.get(program_of(words), "gz")
    unpacks = program_of(words).startswith("un") or "un" in program_of(words) or arguments.has("-d", "--decompress")
    for word in operands:
        made = None if word is None else word.removesuffix(last) if unpacks else word + last
        yield from _write(word, made)


def _of_patch(words: Words) -> _Uses:
    arguments = arguments_of(words, "-i --input -o --output -r --reject-file -p --strip -d --directory -F -B -z")
    yield from _read(*arguments.values("-i", "--input"), *arguments.operands[1:2])
    written = (*arguments.operands[:1], *arguments.values("-o", "--output", "-r", "--reject-file"))
    yield from _write(*(written or (None,)))


_CURL_OUTPUTS: Final = (
    "-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr --libcurl --etag-save --hsts --alt-svc"
)
_CURL_VALUES: Final = (
    "-A -b -C -d -e -E -F -H -K -m -P -Q -r -t -T -u -U -w -x -X -y -Y -z --config --data --data-raw --data-binary "
    "--data-ascii --data-urlencode --json --form --form-string --header --request --url --user --user-agent --cookie "
    "--upload-file --write-out --output-dir --cacert --cert --key --max-time --connect-timeout --retry --proxy "
    "--referer --resolve --range --variable --netrc-file --key-type --limit-rate --ciphers --interface"
)


def _of_curl(words: Words) -> _Uses:
    arguments = arguments_of(words, f"{_CURL_OUTPUTS} {_CURL_VALUES}")
    folder = next(arguments.values("--output-dir"), "")
    named = list(arguments.values(*_CURL_OUTPUTS.split()))
    urls = [*arguments.operands, *arguments.values("--url")]
    if arguments.has("-O", "--remote-name", "--remote-name-all"):
        named.extend(None if arguments.has("-J", "--remote-header-name") else _name_in(url) for url in urls)
    yield from _write(*(_below(folder, path) for path in named))
    if any(value is None or "%output{" in value for value in arguments.values("-w", "--write-out")):
        yield from _write(None)
    if arguments.has("-K", "--config"):
        yield from _write(None)
    yield from _read(*arguments.values("-T", "--upload-file", "-K", "--config", "--netrc-file", "--cert", "--key"))
    yield from _read(*(path for value in arguments.values(*_CURL_DATA.split()) for path in _attached(value)))


def _attached(value: str | None) -> Iterator[str | None]:
    """Yield the file in a value such as `@file` or `name=@file;type=text`."""
    if value is None:
        yield None
    elif match := _READ_OF_VALUE.match(value):
        yield match[1].partition(";")[0]


_CURL_DATA: Final = (
    "-d -F -H -b -w --data --data-ascii --data-binary --data-urlencode --json "
    "--form --header --cookie --write-out --variable"
)


def _name_in(url: str | None) -> str | None:
    """Return the name under which a download is stored, or None if the URL doesn't show the name."""
    if url is None:
        return None
    path = re.sub(r"^\w+://[^/]*|[?#].*", "", url)
    return path.rpartition("/")[2] or None


def _below(folder: str | None, path: str | None) -> str | None:
    if folder is None or path is None:
        return None
    return f"{folder}/{path}" if folder else path


def _of_wget(words: Words) -> _Uses:
    arguments = arguments_of(
        words,
        "-O --output-document -o --output-file -a --append-output -P --directory-prefix -i --input-file -e -t -T -U "
        "--save-cookies --load-cookies --post-file --body-file --header --user --password --user-agent --warc-file "
        "-A -R -l -Q",
    )
    yield from _write(*arguments.values(*_WGET_OUTPUTS.split()))
    yield from _read(*arguments.values("-i", "--input-file", "--load-cookies", "--post-file", "--body-file"))
    if arguments.has("-O", "--output-document", "--spider"):
        return
    folder = next(arguments.values("-P", "--directory-prefix"), "")
    named = not arguments.has(
        "-r", "-m", "-p", "-i", "--recursive", "--mirror", "--input-file", "--content-disposition"
    )
    names = [_name_in(url) or "index.html" if url else None for url in arguments.operands] if named else [None]
    yield from _write(*(_below(folder, name) for name in names))


_WGET_OUTPUTS: Final = "-O --output-document -o --output-file -a --append-output --save-cookies --warc-file"


def _of_git(words: Words) -> _Uses:
    at = git_subcommand_at(words)
    verb, rest = (words[at] if at < len(words) else None) or "", words[at:]
    arguments = arguments_of(rest, "-o --output --output-directory -s --source -b -B -m --message -F --file --orphan")
    yield from _write(*(path for path in arguments.values("--output", "--output-directory") if path != ""))
    yield from _of_tree(verb, arguments)
    if verb in ("archive", "format-patch", "bugreport", "diagnose"):
        yield from _write(*arguments.values("-o"))
    elif verb == "checkout":
        yield from _checked_out(rest, arguments)
    elif verb in ("apply", "am"):
        yield from _read(*arguments.operands)
        yield from _write(None)
    elif verb == "mv":
        yield from _of_copy(("mv", "--", *arguments.operands))
    elif verb == "bundle" and arguments.operands[:1] == ("create",):
        yield from _write(*arguments.operands[1:2])
    elif verb in _ONLY_INDEX and (not arguments.has(*_ONLY_INDEX[verb]) or arguments.has("--worktree", "-W")):
        yield from _write(*arguments.operands)


_CHANGES_FILES: Final = frozenset(
    """
    cherry-pick merge pull read-tree rebase reset revert sparse-checkout stash submodule switch lfs
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)
"""Git commands that write files of the worktree that their words don't name."""
_ONLY_INDEX: Final[Mapping[str, tuple[str, ...]]] = {"restore": ("--staged", "-S"), "rm": ("--cached", "--dry-run")}
"""Git commands that write their operands, and the options that prevent this."""


def _of_tree(verb: str, arguments: Arguments) -> _Uses:
    """Yield the files of the worktree that a Git command reads or writes, although no word names them."""
    if verb in ("grep", "archive") or arguments.has("--stdin-paths", "--pathspec-from-file"):
        yield from _read(*_RECURSION)
    if verb in _CHANGES_FILES and arguments.operands[1:2] != ("list",):
        yield from _write(None)


def _checked_out(words: Words, arguments: Arguments) -> _Uses:
    if "--" in words:
        yield from _write(*words[words.index("--") + 1 :])
    elif not arguments.has("-b", "-B", "--orphan"):
        yield from (Use("write_file", path, only_existing=True) for path in arguments.operands if path is not None)


def _of_unpacker(words: Words) -> _Uses:
    """Handle programs that pack or unpack files that no word names. `dpkg` does so only with some options."""
    if program_of(words) == "dpkg" and not arguments_of(words).has("-x", "-X", "-R", "--extract", "--vextract"):
        yield from _of_unknown(words)
        return
    yield from _read(*_RECURSION)
    yield from _write(None)
    yield from _of_unknown(words)


_SPECIAL: Final[Mapping[str, Callable[[Words], _Uses]]] = {
    **dict.fromkeys(("uniq", "xxd"), _of_filter),
    **dict.fromkeys(("sed", "gsed"), _of_sed),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _of_awk),
    **dict.fromkeys(("cp", "install", "ln", "rsync", "scp", "mv"), _of_copy),
    **dict.fromkeys(("tar", "bsdtar", "gtar"), _of_tar),
    **dict.fromkeys(("7z", "7za", "7zr"), _of_7z),
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd"), _of_gzip),
    **dict.fromkeys(
        """
        cc gcc g++ c++ clang clang++ ld as go rustc swiftc ghc nasm yasm flex lex bison dot protoc pip-compile uv poetry
        esbuild rollup
        """.split(),  # noqa: SIM905 - as a list it would take half a screen
        _of_compiler,
    ),
    **dict.fromkeys(
        ("cpio", "pax", "jar", "unar", "unrar", "cabextract", "unsquashfs", "dpkg-deb", "dpkg"), _of_unpacker
    ),
    "dd": _of_dd,
    "find": _of_find,
    "zip": _of_zip,
    "unzip": _of_unzip,
    "patch": _of_patch,
    "curl": _of_curl,
    "wget": _of_wget,
    "git": _of_git,
}
