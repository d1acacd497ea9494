"""Find commands that other programs run, such as `timeout` or `sudo`, in the words of a command line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from loom.activities.adapters.shell.options_that_run import (
    CODE,
    HARMLESS_KEYS,
    HARMLESS_PLUS,
    RUNS,
    SSH,
    TAR,
    TAR_LETTERS,
    Runs,
)
from loom.domain.permissions import sed
from loom.domain.permissions.command_words import FIND_RUNS, FIND_WRITES

Values = Sequence[str | None]
"""The words that a program receives. A word is None if it is known only when the command runs, or if Bash replaces it
with several words.
"""


class Unclear(Exception):
    """Raised if it can't be known in advance which command will run. The message is the word that prevents this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapper:
    """How to skip a program's own options."""

    flags: str = ""
    """One-letter options without a value."""
    values: str = ""
    """One-letter options with a value, attached or in the next word."""
    long: str = ""
    """Long options without a value, separated by spaces."""
    long_values: str = ""
    """Long options with a value, attached with `=` or in the next word."""
    operands: int = 0
    """Number of operands that precede the command."""
    assigns: bool = False
    """Whether assignments may precede the command."""
    needs_command: bool = True
    """Whether the program starts a shell if it receives no command."""


TRANSPARENT: Final[Mapping[str, Wrapper]] = {
    "timeout": Wrapper(
        flags="fpv", values="ks", long="foreground preserve-status verbose", long_values="kill-after signal", operands=1
    ),
    "time": Wrapper(flags="p"),
    "nice": Wrapper(flags="0123456789", values="n", long_values="adjustment"),
    "nohup": Wrapper(),
    "stdbuf": Wrapper(values="ioe", long_values="input output error"),
    "command": Wrapper(flags="p"),
    "builtin": Wrapper(),
}
"""Programs that change how a command runs, but not its effect."""

_PLAIN: Final = Wrapper()
_ARCHITECTURE: Final = Wrapper(
    flags="RBFILSTXZv3", long="addr-no-randomize 32bit fdpic-funcptrs short-inode addr-compat-layout verbose 3gb 4gb"
)
_TRACER: Final = Wrapper(flags="fFcCidqrtTvVxyYzZ", values="aeEIopPsSuU")
_XARGS: Final = Wrapper(
    flags="0rtpxo",
    values="InPLdEsa",
    long="null no-run-if-empty verbose interactive exit open-tty",
    long_values="arg-file delimiter max-args max-chars max-procs max-lines",
    needs_command=False,
)
RUNNERS: Final[Mapping[str, Wrapper]] = {
    "xargs": _XARGS,
    "env": Wrapper(
        flags="i0v",
        values="uC",
        long="ignore-environment null debug",
        long_values="unset chdir",
        assigns=True,
        needs_command=False,
    ),
    "sudo": Wrapper(
        flags="EnHSbkAP",
        values="ughpCTrtDR",
        long="preserve-env non-interactive set-home stdin background",
        long_values="user group chdir",
        assigns=True,
    ),
    **dict.fromkeys(("gtime", "gnohup"), Wrapper()),
    "gtimeout": TRANSPARENT["timeout"],
    "gnice": TRANSPARENT["nice"],
    "gstdbuf": TRANSPARENT["stdbuf"],
    "gxargs": _XARGS,
    "choom": Wrapper(values="np", long_values="adjust pid"),
    "uclampset": Wrapper(flags="asRv", values="mMp", long="all-tasks system reset-on-fork verbose"),
    "sshpass": Wrapper(flags="ev", values="pPfd"),
    "doas": Wrapper(flags="n", values="uC"),
    "setsid": Wrapper(flags="cfw", long="fork wait ctty"),
    "ionice": Wrapper(flags="t", values="cn", long="ignore", long_values="class classdata"),
    "chrt": Wrapper(flags="abfiorRv", values="TPD", operands=1),
    "taskset": Wrapper(flags="ac", operands=1),
    "flock": Wrapper(
        flags="nxseuoFv",
        values="wE",
        long="nonblock exclusive shared unlock close no-fork verbose nb",
        long_values="timeout wait conflict-exit-code",
        operands=1,
    ),
    "exec": Wrapper(flags="cl", values="a", needs_command=False),
    "chroot": Wrapper(operands=1, long_values="userspec groups", long="skip-chdir"),
    "setarch": _ARCHITECTURE,
    "unshare": Wrapper(flags="fmnpruiUC", long="fork mount net pid map-root-user user ipc uts cgroup"),
    "nsenter": Wrapper(flags="aFemuinpC", values="tSG", long="all", long_values="target"),
    "setpriv": Wrapper(
        long="no-new-privs clear-groups keep-groups init-groups reset-env",
        long_values="reuid regid ruid rgid euid egid groups inh-caps ambient-caps bounding-set securebits pdeathsig",
    ),
    "prlimit": Wrapper(flags="v", values="o", long="verbose noheadings raw"),
    "strace": _TRACER,
    "ltrace": Wrapper(flags="bcCfhiLrStTV", values="aADeElnopsuwxX"),
    "ld.so": Wrapper(
        long="inhibit-cache list verify",
        long_values="library-path preload argv0 inhibit-rpath audit glibc-hwcaps-prepend",
    ),
    "systemd-run": Wrapper(
        flags="dGPqrSt", values="EHMpu", long="user scope pty pipe wait quiet", long_values="unit property uid"
    ),
    "faketime": Wrapper(flags="fm", operands=1),
    "numactl": Wrapper(flags="l", values="imNCP", long_values="cpunodebind membind interleave physcpubind"),
    "xvfb-run": Wrapper(flags="al", values="efnps", long="auto-servernum", long_values="server-args server-num"),
    "cpulimit": Wrapper(flags="ibvqz", values="l", long="", long_values="limit"),
    "valgrind": _PLAIN,
    **dict.fromkeys(("linux32", "linux64", "i386", "i486", "i586", "i686", "x86_64", "uname26"), _ARCHITECTURE),
    **dict.fromkeys(
        """
        busybox toybox coproc runuser su sg script watch parallel sem entr chronic unbuffer dbus-run-session dbus-launch
        capsh systemd-inhibit systemd-cat systemd-nspawn bwrap firejail fakeroot fakechroot proot pkexec gosu su-exec
        tini dumb-init catatonit catchsegv eatmydata cgexec trickle torsocks torify proxychains proxychains4 tsocks
        run-parts start-stop-daemon daemonize at batch runcon aa-exec chpst softlimit setuidgid envdir envuidgid setlock
        execlineb hyperfine rlwrap ifne mispipe pee timelimit perf gdb lldb rr tmux screen xterm ssh-agent newgrp expect
        fd fdfind schedtool coresched watchexec ccache sccache distcc heaptrack uftrace memusage sotruss dtach abduco nq
        tsp logsave nocache s6-setuidgid s6-envdir s6-softlimit qemu-x86_64 qemu-aarch64 qemu-arm qemu-i386 box64 box86
        mpirun mpiexec srun wine wine64 caffeinate envchain with-lock-ex lckdo pidproxy supervise xinit startx gpg-agent
        dtruss
        """.split(),  # noqa: SIM905 - as a list it would take a screen
        _PLAIN,
    ),
}
"""Programs that run another command. Approving only that command isn't sufficient."""

_EXACT: Final = frozenset({"xargs", "env", "exec"})
"""Runners whose command certainly starts at the first word after their options."""

OF_TEXT: Final = frozenset(
    """
    eval trap alias watch parallel sem su sg script at batch tmux screen expect execlineb hyperfine mispipe pee
    run-parts gdb lldb coproc capsh newgrp
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)
"""Programs that read commands from the text of their arguments, or from elsewhere."""

_WITH_TEXT: Final = OF_TEXT | {"env", "flock", "runuser"}

FORWARDING: Final[Mapping[str, int]] = {
    **dict.fromkeys(("npx", "pnpx", "bunx", "uvx", "dotenv", "doppler", "nodemon", "concurrently"), 1),
    **dict.fromkeys(
        """
        npm pnpm yarn bun uv poetry pipenv pdm hatch rye conda mamba micromamba pipx direnv mise rtx asdf rbenv pyenv
        nodenv bundle docker podman nerdctl kubectl ssh ip nix nix-shell devbox vagrant heroku chamber aws-vault
        """.split(),  # noqa: SIM905 - as a list it would take half a screen
        2,
    ),
    **dict.fromkeys(
        """
        cargo go guix just tox nox op infisical sops teller vault foreman honcho forego overmind turbo lerna nx volta
        fnm
        nvm rustup cross earthly act multipass lxc incus machinectl buildah ctr crictl apptainer singularity toolbox
        arch
        distrobox flatpak flatpak-spawn snap wsl adb fly railway salt ansible gcloud varlock composer gem rvm virsh
        mosh rsh pssh parallel-ssh pdsh clush detach savelog keychain ts vipe pv
        """.split(),  # noqa: SIM905 - as a list it would take half a screen
        1,
    ),
}
"""Programs that may run a command in their arguments, and the first argument at which this command may start. The exact
start isn't analyzed.
"""

SYSTEM_FOLDERS: Final = frozenset(["/bin", "/usr/bin", "/usr/local/bin"])
"""Folders whose programs are the ones that these tables describe."""
SHELLS: Final = frozenset(["sh", "bash", "dash", "ash", "rbash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh"])
_LIKE_BASH: Final = frozenset({"sh", "bash", "dash", "ash"})
"""Shells in which transparent lines mean the same as in Bash, except for `_ONLY_BASH`."""
_ONLY_BASH: Final = re.compile(r"\$['\"\[]|[<>]\(|&>|\|&|\[\[|<<<|;&|~[-+]|\(\(|\w\(|=\(|\{\w+\}[<>]")

TAKES_DATA: Final = frozenset(
    """
    cat head tail wc grep egrep fgrep rg nl tac rev cut tr paste fold expand fmt column comm join cmp diff sort uniq
    shuf tee sed awk gawk mawk jq yq xargs od xxd hexdump strings base64 base32 md5sum sha1sum sha256sum sha512sum cksum
    gzip gunzip zcat bzip2 xz zstd less more true false test [ echo printf ls
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)
"""Programs for which standard input is only data. Others may run it, as `python3` and `psql` do."""

_FIND_CHANGES: Final = ("-delete", *FIND_WRITES)
_OPERAND: Final = re.compile(r'"[\w./][^"@]*"')
"""Matches one word that can't be an option, although its value isn't known."""
_SET_BY_LINES: Final = (
    "BASH|OPT|REPLY|PWD|OLDPWD|RANDOM|DIRSTACK|FUNCNAME|PIPESTATUS|MAPFILE|COPROC|NODE_ENV|LANG|LC_|TZ|CI|TERM|COLUMNS"
    "|LINES|PYTHONUNBUFFERED|FORCE_COLOR|NO_COLOR|RUST_BACKTRACE"
)
"""Starts of the names in upper case that a line may assign although no rule covers the assignment."""
_FROM_ENVIRONMENT: Final = re.compile(
    rf"\$(?!\{{?(?:{_SET_BY_LINES}))(?:[A-Z][A-Z0-9_]*(?![a-z])|\{{[A-Z][A-Z0-9_]*(?:[#%]{{1,2}}[\w./*-]*)?\}})"
)
_FOLDER: Final = re.compile(r"(?<=^\")\$(?:PWD\b|\{PWD\})")
_UNCERTAIN: Final = tuple("{*?[-+@~\\") + tuple(quote + each for quote in "'\"" for each in "-+@'\"\\")
"""Starts of computed words that may become options."""
_LOADER: Final = re.compile(r"ld(?:-[\w.-]+)?\.so(?:\.\d+)?")
_SHELL_OPTIONS: Final = frozenset(["-o", "+o", "-O", "+O", "--rcfile", "--init-file"])
_PLAIN_LETTERS: Final = frozenset("ceuxvf")
_START_UP: Final = frozenset({"--login", "--norc", "--noprofile"})
_PLAIN_NAMES: Final = frozenset({"errexit", "nounset", "xtrace", "verbose", "noglob", "pipefail"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """How a shell receives its commands."""

    at: int | None
    """The position of the word after `-c`, which contains the commands, or of the script's path."""
    is_inline: bool
    is_plain: bool
    """Whether the shell runs nothing but these commands."""
    odd: str
    """The option or the shell that may change the meaning of the commands, or an empty string."""


def program_of(word: str) -> str:
    """Return the name of a program without its folder. Return the same name for all names of the dynamic loader."""
    name = word.rpartition("/")[2]
    return "ld.so" if _LOADER.fullmatch(name) else name


def after(wrapper: Wrapper, values: Values) -> int:
    """Return the index of the wrapped command's first word, or the number of words if no command is wrapped."""
    at = 1
    while at < len(values):
        word = values[at]
        if word is None:
            raise Unclear
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or (word == "-" and not wrapper.assigns):
            break
        at += 1 if word == "-" else _width(wrapper, word)
    at += wrapper.operands
    while wrapper.assigns and at < len(values) and "=" in (values[at] or ""):
        at += 1
    if None in values[1:at]:
        raise Unclear
    return min(at, len(values))


def _width(wrapper: Wrapper, word: str) -> int:
    """Return the number of words that an option consists of."""
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        if name in wrapper.long_values.split():
            return 1 if equals else 2
        if name in wrapper.long.split() and not equals:
            return 1
        raise Unclear(word)
    for place, letter in enumerate(word[1:], start=2):
        if letter in wrapper.values:
            return 1 if place < len(word) else 2
        if letter not in wrapper.flags:
            raise Unclear(word)
    return 1


def placeholder(values: Values) -> str:
    """Return the text that `xargs` replaces with its input, or an empty string if it appends its input."""
    options = values[1 : after(RUNNERS["xargs"], values)]
    for option, following in zip(options, [*options[1:], ""], strict=False):
        if option is not None and re.fullmatch(r"-[0rtpxo]*I.*", option, re.DOTALL):
            return option.partition("I")[2] or following or ""
    return ""


def found_commands(values: Values, texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the start and end of each command that a `find` command runs. Raises Unclear if `find` itself changes
    files, or if a computed word may become one of the words that separate the commands.
    """
    for value, text in zip(values, texts, strict=True):
        if value in _FIND_CHANGES or (value is None and _may_separate(text)):
            raise Unclear(text)
    begins = [at + 1 for at, value in enumerate(values) if value in FIND_RUNS]
    return [(begin, _end(values, begin)) for begin in begins]


def _may_separate(text: str) -> bool:
    if _OPERAND.fullmatch(text):
        return False
    if set(text) & set("{}[$`'\"\\<>"):
        return True
    return any(fnmatchcase(word, text) for word in (*FIND_RUNS, *_FIND_CHANGES, ";", "+", "{}"))


def _end(values: Values, begin: int) -> int:
    ends = (
        at
        for at in range(begin, len(values))
        if values[at] == ";" or (values[at] == "+" and values[at - 1] == "{}" and at > begin)
    )
    return next(ends, len(values))


def command_at(name: str, values: Values) -> int:
    """Return the index of the word at which a runner's command starts, or the number of words if there is none."""
    skipped = 1 if name == "setarch" and values[1:] and not (values[1] or "-").startswith("-") else 0
    at = skipped + after(RUNNERS[name], values[skipped:])
    if at >= len(values) and RUNNERS[name].needs_command:
        raise Unclear(name)
    return at


def forwarded_from(name: str, nowhere: int) -> int:
    """Return the index of the first argument at which a program's own command may start, or `nowhere`."""
    return FORWARDING.get(name, 1 if name in RUNNERS and name not in _EXACT else nowhere)


def word_that_runs(name: str, values: Values, texts: Sequence[str]) -> int:
    """Return the position of the word that makes a program run another program, or may do so, or 0 if there is none."""
    name = name if name in RUNS else _without_version(name)
    if name not in RUNS:
        return 0
    runs = RUNS[name]
    scripts = dict(sed.scripts_in(values)) if name in sed.SED else {}
    for at in range(1, len(values)):
        value = values[at]
        if value is None:
            # The first word of `tar` is options, whatever its first character is.
            is_any = runs.words is not None or at in scripts or (at == 1 and name in TAR)
            found = _may_run_something(runs, texts[at], is_any=is_any)
        else:
            # Words after `--` count as well, because `--` may be the value of an option: `tar -C -- -I ./x`.
            found = _runs_something(runs, value) and not _is_harmless(name, values, at)
        if found:
            return at
    # What `sed` runs is the text of all parts of its script. What an environment sets is one of their words.
    parts = [
        (_without_environment(texts[at]) if values[at] is None else values[at] or "")[start:]
        for at, start in scripts.items()
    ]
    if sed.runs_something("\n".join(parts)):
        return next(iter(scripts))
    return 1 if name in TAR and _is_old_cluster(values) else 0


def _without_version(name: str) -> str:
    """Return the usual name of a program: `gcc` for `x86_64-linux-gnu-gcc-12`, `vim` for `vim.basic`."""
    return re.sub(r"(?<=[A-Za-z+])(?:-?\d[\d.]*|\.[a-z]\w*)\Z", "", name.rpartition("-gnu-")[2])


def _without_environment(text: str) -> str:
    """Return the text of a computed word without quotes, and with other words for what the environment sets. A line
    can't change what its environment sets.
    """
    return _FROM_ENVIRONMENT.sub("x", _FOLDER.sub("/", text)).replace('"', "")


def _may_run_something(runs: Runs, text: str, *, is_any: bool) -> bool:
    """Whether a computed word may become a word that runs something. If `is_any`, words other than options may run
    something as well.
    """
    known = _FROM_ENVIRONMENT.sub("x", _FOLDER.sub("/", text))
    is_computed = not set("$`").isdisjoint(known)
    if is_any and (is_computed or "{" in known or _runs_something(runs, _without_environment(text))):
        return True
    return not _OPERAND.fullmatch(known) and (is_computed or known.startswith(_UNCERTAIN))


def _runs_something(runs: Runs, word: str) -> bool:
    if runs.words is not None and runs.words.fullmatch(word):
        return True
    starts = runs.starts.split()
    if word.startswith("+"):
        return "+" in starts and not HARMLESS_PLUS.fullmatch(word)
    return word.startswith(tuple(starts)) or (
        word.startswith("-") and any(_is(word, option) for option in runs.options.split())
    )


def _is_harmless(name: str, values: Values, at: int) -> bool:
    """Whether an option of `ssh` is `-o` with a key whose value runs nothing, or `-J` with a plain host: `ssh` puts the
    host into a command of a shell.
    """
    given = re.fullmatch(r"-[A-CEGHK-LN-RT-Za-z0-9]*?([oJ])\s*(.*)", values[at] or "", re.DOTALL)  # without DFIMS
    if name not in SSH or given is None:
        return False
    setting = given[2] or (values[at + 1] if at + 1 < len(values) else "") or ""
    if given[1] == "J":
        return re.fullmatch(r"[\w.@:,%\[\]][\w.@:,%\[\]-]*", setting) is not None
    return re.split(r"[\s=]", setting.strip(), maxsplit=1)[0].lower() in HARMLESS_KEYS


def _is_old_cluster(values: Values) -> bool:
    """Whether the first word of `tar` is a cluster of options without a dash, one of which runs a program."""
    first = (values[1] if len(values) > 1 else "") or ""
    return first[:1] not in ("", "-") and bool(TAR_LETTERS & set(first))


def run_by_option(name: str, values: Values, texts: Sequence[str]) -> Iterator[str]:
    """Yield the texts that may be commands in the words of a program that runs another program."""
    at = word_that_runs(name, values, texts)
    for word in values[1:] if name in CODE else values[at : at + 3] if at else ():
        if word:
            yield from dict.fromkeys(
                text for found in _TEXTS.finditer(word) if (text := found["quoted"] or found["rest"])
            )


_TEXTS: Final = re.compile(
    r"(?P<open>[\"'`])(?P<quoted>[^\"'`]*)(?=[\"'`])|(?=(?:^|(?<=[\s=!|:,;]))(?P<rest>\w.*))", re.DOTALL
)
"""Matches each part of a word at which a command may start."""


_FLAGS: Final = r"[^-=]?(?:[A-Za-z0-9~@#$%?!^+*\"]|(?<!\d):)*"
"""Matches the options that may precede another one in a cluster: `less -~k x` reads `x`. Most other signs are in the
value of an option, as in `ssh -L80:host:80`.
"""


def _is(word: str, option: str) -> bool:
    if option.startswith("--"):
        name = word.partition("=")[0].lower()  # `vim --CMD` is `--cmd`
        return word != "--" and option.lower().startswith(name)
    return re.fullmatch(rf"-{_FLAGS}{option[1:]}.*", word, re.DOTALL) is not None


def script_of(name: str, values: Values) -> Script:
    """Return how a shell receives its commands. Raises Unclear if a computed word may be an option."""
    is_inline, is_plain, reads_input, at = False, True, False, 1
    odd = "" if name in _LIKE_BASH else name
    while at < len(values):
        word = values[at]
        if word is None:
            raise Unclear
        if word in ("-", "--") or not word.startswith(("-", "+")):
            at += word in ("-", "--")
            break
        if word == "+":  # an option without letters
            at += 1
            continue
        has_name = word in _SHELL_OPTIONS or (word[1] != "-" and word.endswith("o"))
        letters = set() if word[1] == "-" else set(word[1:]) - ({"o"} if has_name else set())
        is_inline, reads_input = is_inline or "c" in letters, reads_input or "s" in letters
        is_known = word in _START_UP if word[1] == "-" else letters <= _PLAIN_LETTERS | {"l", "s"}
        if not is_known or (has_name and not set(values[at + 1 : at + 2]) <= _PLAIN_NAMES):
            odd = odd or word
        is_plain = is_plain and word[1] != "-" and letters <= _PLAIN_LETTERS
        at += 2 if has_name else 1
    if None in values[:at]:
        raise Unclear
    has_word = at < len(values) and (is_inline or not reads_input)
    return Script(at=at if has_word else None, is_inline=is_inline, is_plain=is_plain, odd=odd)


def is_only_bash(name: str, script: str) -> bool:
    """Whether a shell other than Bash may read this script differently."""
    return name != "bash" and _ONLY_BASH.search(script) is not None


def scripts_in(name: str, values: Values) -> Iterator[str]:
    """Yield a program's arguments if they contain commands as text."""
    if name not in _WITH_TEXT:
        return
    for value in values[1:]:
        text = re.sub(r"\A(?:--?\w[\w-]*=|-\w*[cS])", "", value or "")
        if text and not text.startswith("-"):
            yield text
