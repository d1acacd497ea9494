"""The words with which programs that look harmless run another program, or read options or code from a file.

The tables follow the programs' manual pages. A program that isn't listed has no such option. The fuzzer of shell lines
takes its options from the same tables.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """The words of a program that run another program or foreign code."""

    options: str = ""
    """Options, separated by spaces. One-letter options may be in a cluster, and long options may be abbreviated."""
    starts: str = ""
    """Starts of words, separated by spaces, for programs that have neither clusters nor abbreviations."""
    words: re.Pattern[str] | None = None
    """Matches any other word that runs something, wherever it is."""


HARMLESS_KEYS: Final = frozenset(
    """
    addressfamily batchmode bindaddress checkhostip ciphers compression connectionattempts connecttimeout
    controlmaster controlpersist fingerprinthash forwardagent forwardx11 globalknownhostsfile
    hostkeyalgorithms hostname identitiesonly identityfile kbdinteractiveauthentication kexalgorithms loglevel macs
    numberofpasswordprompts passwordauthentication port preferredauthentications pubkeyacceptedalgorithms
    pubkeyauthentication requesttty sendenv serveralivecountmax serveraliveinterval setenv stricthostkeychecking
    tcpkeepalive updatehostkeys user userknownhostsfile verifyhostkeydns
    """.split()  # noqa: SIM905 - as a list it would take a screen
)
"""Keys of `ssh -o` whose values run nothing."""

_CONFIG: Final = "--config --config-file"
_COMPILERS: Final = "cc gcc g++ c++ cpp gfortran clang clang++ clang-cpp tcc"
_SSH: Final = "-o -F -I -S -J"
_TOOLS: Final = "|".join(
    """
    CC CXX CPP FC LD AR AS NM RANLIB STRIP OBJCOPY OBJDUMP RM INSTALL LEX YACC CO GET PC M2C TANGLE WEAVE CWEAVE CTANGLE
    TEX MAKEINFO TEXI2DVI PYTHON PYTHON3 GO NODE NPM SUDO DOCKER LINKER COMPILER WRAPPER LAUNCHER RUNNER SHELL EXEC
    COMMAND
    """.split()  # noqa: SIM905 - as a list it would take a screen
)
_MAKE_VARIABLE: Final = (
    rf"(?:\.?SHELL(?:FLAGS)?|MAKE\w*|GNUMAKEFLAGS|MFLAGS|VPATH|COMSPEC|(?:\w+_)?(?:{_TOOLS}))\s*[:+?]*=.*"
    r"|[^=]*!=.*|[^=\s]+=.*[$][({\w].*"
)
"""A variable of `make` whose value is a program, options of `make`, or a text that `make` expands."""
_MAKE: Final = Runs(
    options="--eval -E -f --file --makefile -I --include-dir", words=re.compile(_MAKE_VARIABLE, re.DOTALL)
)
_NODE: Final = Runs(
    options="-r -e -p --require --import --loader --experimental-loader --eval --print --env-file --openssl-config"
)
_BUNDLER: Final = Runs(
    options="-c -r --require --preload --plugin --plugins --parser --rulesdir --resolve-plugins-relative-to "
    "--global-setup --globalSetup --global-teardown --globalTeardown --setupFiles --setupFilesAfterEnv --runner "
    "--testRunner --transform --transformer --reporters --env --testEnvironment --resolver --formatter "
    "--presets --plugin-search-dir --custom-syntax --custom-formatter --testSequencer --testResultsProcessor "
    f"--watchPlugins --configPlugin --configuration --extension --bootstrap --project --cwd {_CONFIG}"
)
_AWK: Final = Runs(
    options="-f --file -l --load -i --include -E --exec -D --debug -W",
    words=re.compile(r".*(?:\bsystem[\s\\]*\(|(?<!\|)\|(?!\|)|@load|@include|@\s*\w+\s*\(|/inet[46]?/).*", re.DOTALL),
)
_VI: Final = Runs(options="-c -S -s -u -U -w -W -l --cmd --remote-send --remote-expr --startuptime", starts="+")
_RUBY_TEST: Final = Runs(options="-r -e -f -R -O -I --require --execute --rakefile --rakelibdir --libdir --options")

SSH: Final = frozenset({"ssh", "slogin", "scp", "sftp", "autossh", "ssh-copy-id"})
"""Programs that take `-o KEY=VALUE`."""
TAR: Final = frozenset({"tar", "gtar", "bsdtar"})
"""Programs whose first word may be a cluster of options without a dash."""
TAR_LETTERS: Final = frozenset("IFT")
"""The letters of such a cluster that run a program, or read options from a file."""

RUNS: Final[Mapping[str, Runs]] = {
    # Archives and copies
    **dict.fromkeys(
        TAR,
        Runs(
            options="-I -F -T --to-command --use-compress-program --checkpoint-action --info-script "
            "--new-volume-script --rsh-command --rmt-command --files-from "
        ),
    ),
    **dict.fromkeys(("cpio", "mt", "rmt"), Runs(options="--rsh-command")),
    "pax": Runs(options="--use-compress-program"),
    "zip": Runs(options="-TT --unzip-command"),
    "rsync": Runs(options="-e -M --rsh --rsync-path --remote-option --config --dparam"),
    "dump": Runs(options="-F"),
    "split": Runs(options="--filter"),
    "install": Runs(options="--strip-program"),
    "sort": Runs(options="--compress-program"),
    "dpkg": Runs(options="--pre-invoke --post-invoke --status-logger --force-script-chrootless --admindir --root"),
    **dict.fromkeys(
        ("apt", "apt-get", "apt-cache", "aptitude"),
        Runs(options="-o -c --option --config-file"),
    ),
    "apt-config": Runs(options="-o -c --option --config-file"),
    **dict.fromkeys(
        ("yum", "dnf", "zypper"), Runs(options="-c --setopt --plugindir --installroot --root -R " + _CONFIG)
    ),
    "pacman": Runs(options="-r --root --hookdir --sysroot --gpgdir " + _CONFIG),
    "rpm": Runs(options="-D -E --eval --define --pipe --rcfile --load --macros --root --dbpath"),
    "rpmbuild": Runs(options="-D -E --eval --define --pipe --rcfile --load --macros --buildroot"),
    "apk": Runs(options="-p --root --keys-dir --repositories-file"),
    "brew": Runs(options="--debug --interactive -i -d"),
    "dpkg-buildpackage": Runs(starts="--hook- --sign-command -p --check-command -R --rules-file --admindir"),
    # Compilers and linkers
    **dict.fromkeys(
        _COMPILERS.split(),
        Runs(
            starts="-B -wrapper --wrapper -specs --specs -fplugin --fplugin -fpass-plugin -fuse-ld --ld-path --prefix "
            "-Xlinker -Xclang -Xassembler -Xpreprocessor --for-linker --for-assembler -Wl,-plugin -Wl,--plugin "
            "-Wl,@ -Wa,@ -Wp,@ -Wl,-T -Wl,--script -Wl,-fuse -T --config --gcc-toolchain -load @ --sysroot "
            "--gcc-install"
        ),
    ),
    **dict.fromkeys(
        ("ld", "gold", "ld.gold", "ld.bfd", "ld.lld", "lld"), Runs(starts="-plugin --plugin -T --script -c @")
    ),
    **dict.fromkeys(
        (
            "as",
            "ar",
            "nm",
            "strip",
            "objdump",
            "objcopy",
            "ranlib",
            "size",
            "readelf",
            "windres",
            "c++filt",
            "addr2line",
        ),
        Runs(
            starts="@ -plugin --plugin -plugin-opt --plugin-opt --preprocessor --preprocessor-arg "
            "--disassembler-options -M"
        ),
    ),
    "rustc": Runs(starts="@ -C --codegen -Z --sysroot -L --extern"),
    "rustdoc": Runs(starts="@ -C --codegen -Z --runtool --test-runtool --test-builder --theme --test-args"),
    "cargo": Runs(options="-Z -C --config --manifest-path", starts="+"),
    "rustup": Runs(options="--toolchain"),
    "go": Runs(
        starts="-toolexec --toolexec -exec --exec -vettool --vettool -overlay --overlay -modfile --modfile -gccgoflags "
        "--gccgoflags -compiler --compiler -pkgdir --pkgdir -C --C -w",
        words=re.compile(r"--?(?:ld|gc|asm)flags=.*-(?:extld|extar|toolexec).*|.*-extld(?:[= ].*)?", re.DOTALL),
    ),
    "gofmt": Runs(),
    "golangci-lint": Runs(options="-c --config --go"),
    "javac": Runs(starts="@ -J -processorpath --processor-path -processor -Xplugin -javaagent"),
    "java": Runs(
        starts="@ -javaagent -agentpath -agentlib -XX:OnError -XX:OnOutOfMemoryError -XX:Flags -XX:VMOptionsFile"
    ),
    "jar": Runs(starts="@ -J"),
    "mvn": Runs(options="-f -s -gs -t --file --settings --toolchains", starts="-Dexec -Dmaven -Djvm"),
    "gradle": Runs(
        options="-I -b -p -g -c --init-script --build-file --project-dir --gradle-user-home --settings-file "
        "--include-build"
    ),
    "ant": Runs(starts="-f -file -buildfile -lib -logger -listener -inputhandler -propertyfile -find -s"),
    "protoc": Runs(starts="@ --plugin"),
    "bison": Runs(options="-S --skeleton"),
    "yacc": Runs(options="-S --skeleton"),
    "flex": Runs(options="-S --skel"),
    "swig": Runs(starts="@"),
    "ccache": Runs(options="--config-path"),
    # Builds
    **dict.fromkeys(("make", "gmake", "bmake", "mingw32-make.exe", "mingw32-make", "remake", "nmake"), _MAKE),
    "ninja": Runs(options="-f"),
    "cmake": Runs(
        starts="-P -C -E --toolchain -S --preset --debugger",
        words=re.compile(
            r"(?:-D)?(?:CMAKE_\w*(?:COMPILER|LAUNCHER|LINKER|PROGRAM|TOOLCHAIN|INCLUDE|MODULE_PATH|RULE|EMULATOR|"
            r"COMMAND|AR|NM|LINK_WHAT)\w*|\w*_(?:EXECUTABLE|COMMAND|PROGRAM|COMPILER))(?::\w+)?=.*|" + _MAKE_VARIABLE,
            re.DOTALL,
        ),
    ),
    "ctest": Runs(
        starts="-S -SP -D --script --script-new-process --build-makeprogram --test-command --build-and-test --overwrite"
    ),
    "meson": Runs(options="--native-file --cross-file --vsenv --wrap --wrapper --gdb-path"),
    "bazel": Runs(
        options="--bazelrc --run_under --shell_executable --workspace_status_command --override_repository "
        "--action_env "
        "--credential_helper --host_jvm_args --extra_toolchains --script_path"
    ),
    "buck": Runs(options="--config --config-file -c"),
    # Python
    "pytest": Runs(
        options="-p -c -o --rootdir --confcutdir --override-ini --config-file --pdbcls --debugger --pyargs "
        "--import-mode",
        starts="--cov-c",
    ),
    "py.test": Runs(options="-p -c -o --rootdir --confcutdir --override-ini --config-file --pdbcls", starts="--cov-c"),
    "tox": Runs(options="-c -x --conf --override --workdir --root --runner --default-runner"),
    "nox": Runs(options="-f --noxfile"),
    "pip": Runs(options="--config-settings --python --editor --global-option --build-option --cert"),
    "pip3": Runs(options="--config-settings --python --editor --global-option --build-option --cert"),
    "virtualenv": Runs(options="-p --python --app-data --discovery --extra-search-dir --creator"),
    "uv": Runs(options="-p --python --config-file --config-setting --config-settings --env-file"),
    "mypy": Runs(options="--config-file --python-executable --custom-typeshed-dir --install-types"),
    "pylint": Runs(options="--init-hook --load-plugins --rcfile"),
    **dict.fromkeys(
        ("flake8", "black", "coverage", "ruff", "bandit", "yapf", "autopep8"),
        Runs(options="--rcfile --append-config " + _CONFIG),
    ),
    "isort": Runs(options="--config-root --settings-path --settings-file --sp --src " + _CONFIG),
    "sphinx-build": Runs(options="-c -D"),
    "django-admin": Runs(options="--pythonpath"),
    "gunicorn": Runs(options="-c --chdir --pythonpath --logger-class -k --worker-class " + _CONFIG),
    "uwsgi": Runs(
        options="--exec-pre-app --exec-asap --hook-asap --plugins --import --python-path --ini --attach-daemon"
    ),
    "pre-commit": Runs(options="-c " + _CONFIG),
    "twine": Runs(options="--sign-with --config-file"),
    # JavaScript, Ruby, PHP, Java
    **dict.fromkeys(
        ("npm", "pnpm", "yarn", "npx", "bun"),
        Runs(
            options="--script-shell --shell --userconfig --globalconfig --use-yarnrc --node-options --git --editor "
            "--viewer --browser --prefix --local-prefix -C --dir --cwd --shell-emulator --onload-script --init-module "
            "--node-gyp --preload -r --config --use-node-version --call -c",
            words=re.compile(
                r"(?:script-shell|shell|editor|viewer|browser|git|node-options|init-module)(?:=.*)?|NODE_OPTIONS=.*"
            ),
        ),
    ),
    "node": _NODE,
    "nodejs": _NODE,
    "ts-node": _NODE,
    "deno": Runs(options="--config --preload --import-map -c --import --eval"),
    **dict.fromkeys(
        "jest webpack vite vitest rollup prettier babel phpunit ava esbuild stylelint".split(),  # noqa: SIM905
        _BUNDLER,
    ),
    "eslint": replace(_BUNDLER, options=f"{_BUNDLER.options} -f"),
    "mocha": replace(_BUNDLER, options=f"{_BUNDLER.options} -R -u --ui --file"),
    "tsc": Runs(options="--plugins"),
    "composer": Runs(options="-d --working-dir"),
    "php": Runs(options="-d -c -z -B -R -E -F --define --php-ini --zend-extension"),
    "rake": replace(_RUBY_TEST, options=f"{_RUBY_TEST.options} -p -E --execute-print --execute-continue"),
    "rspec": _RUBY_TEST,
    "ruby": Runs(options="-r -I -C --require"),
    "gem": Runs(options="-C --config-file"),
    "bundle": Runs(options="--ext --gemfile"),
    "perl": Runs(starts="-M -m -d -I"),
    "lua": Runs(options="-l"),
    # Text
    "rg": Runs(options="--pre --hostname-bin"),
    **dict.fromkeys(
        ("bat", "batcat", "delta"), Runs(options="--pager --config --config-file --config-dir --diff-args")
    ),
    **dict.fromkeys(("ag", "ack", "ugrep", "ug"), Runs(options="--pager --ackrc --filter --config")),
    "man": Runs(options="--pager --html --preprocessor -P -H -C -M --config-file"),
    **dict.fromkeys(("diff3", "sdiff"), Runs(options="--diff-program")),
    "patch": Runs(options="-g --get -e --ed"),
    **dict.fromkeys(("sed", "gsed"), Runs(options="-f --file")),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _AWK),
    "jq": Runs(options="-L -f --from-file"),
    "yq": Runs(options="--from-file", words=re.compile(r".*\b(?:load\w*|system|exec)\s*\(.*", re.DOTALL)),
    "less": Runs(
        options="-k --lesskey-file --lesskey-src --lesskey-content --tag-file -T",
        words=re.compile(r"\+\+?.*[!|vs#&].*", re.DOTALL),
    ),
    "more": Runs(words=re.compile(r"\+.*[!v].*", re.DOTALL)),
    **dict.fromkeys(("vim", "vi", "nvim", "ex", "view", "gvim", "vimdiff", "rvim"), _VI),
    "emacs": Runs(
        options="-l -f -u --eval --execute --load --funcall --script --directory -L --insert --user --init-directory",
        starts="-ex -script -insert -dir -init",
    ),
    "nano": Runs(options="--speller --rcfile --syntax", words=re.compile(r"-(?!-).*[sf].*", re.DOTALL)),
    "ed": Runs(words=re.compile(r"!.*", re.DOTALL)),
    **dict.fromkeys(("dc", "bc"), Runs(options="-e -f --expression --file", words=re.compile(r"!.*", re.DOTALL))),
    "ctags": Runs(options="--options --options-maybe --optlib-dir --kinddef --extra --mline-regex"),
    "pandoc": Runs(
        options="-F -L -d --filter --lua-filter --pdf-engine --pdf-engine-opt --defaults --data-dir --template "
        "--syntax-definition --csl",
        words=re.compile(r".*\.lua(?:[+-].*)?"),
    ),
    **dict.fromkeys(("groff", "troff", "nroff"), Runs(options="-P -F -M -U -I -R")),
    **dict.fromkeys(
        ("latex", "pdflatex", "xelatex", "lualatex", "tex", "pdftex", "luatex"),
        Runs(
            starts="-shell-escape --shell-escape -enable-write18 --enable-write18 -cnf-line --cnf-line "
            "-output-driver --output-driver -lua --lua -fmt --fmt",
            words=re.compile(r".*\\(?:write18|input|directlua|immediate).*", re.DOTALL),
        ),
    ),
    "latexmk": Runs(
        starts="-e -r -pdflatex -latex -xelatex -lualatex -shell-escape -usepretex -pretex -bibtex -new-viewer"
    ),
    "gnuplot": Runs(options="-e -c"),
    "gs": Runs(starts="-dNOSAFER @ -I -c"),
    "dot": Runs(),
    **dict.fromkeys(
        ("geninfo", "genhtml", "lcov"),
        Runs(
            options="--demangle-cpp --rc --config-file --gcov-tool --compat --annotate-script --version-script "
            "--criteria-script --resolve-script --unreachable-script --simplify-script --context-script "
            "--history-script --select-script"
        ),
    ),
    **dict.fromkeys(
        "convert magick mogrify identify compare composite montage import display animate stream conjure gm".split(),  # noqa: SIM905
        Runs(words=re.compile(r"(?:msl|mvg|ephemeral|url|delegate):.*|.*\|.*", re.DOTALL)),
    ),
    **dict.fromkeys(("sox", "play", "rec", "soxi"), Runs(words=re.compile(r"\|.*", re.DOTALL))),
    # Networks
    "curl": Runs(options="-K --config --engine"),
    "wget": Runs(options="-e --execute --config --use-askpass"),
    "aria2c": Runs(starts="--on- --conf-path --input-file -i"),
    **dict.fromkeys(("ssh", "slogin", "autossh", "ssh-copy-id"), Runs(options=_SSH)),
    "scp": Runs(options=f"{_SSH} -D -M"),
    "sftp": Runs(options=f"{_SSH} -D -b -s"),
    "sshfs": Runs(options="-o -F"),
    "ssh-keygen": Runs(options="-D -w"),
    "ssh-add": Runs(options="-s -S"),
    "ssh-agent": Runs(options="-P"),
    "mosh": Runs(options="--ssh --server --client"),
    **dict.fromkeys(
        ("nc", "ncat", "netcat"),
        Runs(options="-e -c --sh-exec --exec --lua-exec --ssl-trustfile", starts="--sh-e --exe"),
    ),
    "socat": Runs(words=re.compile(r"(?i:.*\b(?:exec|system|shell):.*)", re.DOTALL)),
    "lftp": Runs(options="-e -c -f"),
    "ftp": Runs(words=re.compile(r"\|.*", re.DOTALL)),
    "nmap": Runs(options="--script --script-args --datadir --resume"),
    "tcpdump": Runs(options="-z"),
    "tshark": Runs(options="-X -C"),
    "rclone": Runs(options="--password-command --config --sftp-ssh --webdav-bearer-token-command"),
    "restic": Runs(options="--password-command -o --option"),
    "borg": Runs(options="--rsh"),
    "ip": Runs(options="-b -batch"),
    "mail": Runs(options="-S"),
    "mutt": Runs(options="-e -F"),
    "mount": Runs(options="-t --types"),
    # Version control
    "svn": Runs(options="--config-option --diff-cmd --diff3-cmd --editor-cmd --config-dir"),
    "hg": Runs(options="--config --ssh -R --repository --cwd --config-file"),
    "cvs": Runs(options="-e -d -z"),
    "gh": Runs(words=re.compile(r"!.*", re.DOTALL)),
    # Databases
    "sqlite3": Runs(
        options="-cmd -init --cmd --init -A",
        starts="-cmd --cmd -init --init",
        words=re.compile(
            r"(?:.*\n)?\s*\.\s*(?:[\"']|sh|sy|loa|rea|imp|onc|ou|ex|www|che|tes|arc|ar\b).*|"
            r"(?i:.*(?:load_extension|\bedit\s*\(|readfile|writefile|fts3_tokenizer).*)|.*\|\s*[./\w]+\s*",
            re.DOTALL,
        ),
    ),
    "psql": Runs(
        options="-f --file",
        words=re.compile(
            r"(?i:.*(?:\\!|\\o|\\g\w*\s*\||\\copy|\\i|\\setenv|\\w|\\e|\bprogram\b|`).*)|(?:-o)?\|.*|.*PAGER.*",
            re.DOTALL,
        ),
    ),
    **dict.fromkeys(
        ("mysql", "mariadb"),
        Runs(
            options="--pager --defaults-file --defaults-extra-file --plugin-dir --init-command --tee",
            words=re.compile(r"(?i:.*(?:\\!|\\\.|\\P).*|(?:.*\b|-\w*e)(?:system|source|pager|edit)\b.*)", re.DOTALL),
        ),
    ),
    **dict.fromkeys(
        ("mysqldump", "mysqladmin"), Runs(options="--defaults-file --defaults-extra-file --plugin-dir --init-command")
    ),
    "redis-cli": Runs(options="--eval"),
    "mongosh": Runs(options="--eval -f --file"),
    # Encryption
    **dict.fromkeys(
        ("gpg", "gpg2", "gpgv"),
        Runs(
            options="--agent-program --exec-path --photo-viewer --options --homedir --keyserver-options "
            "--dirmngr-program "
            "--pinentry-program --gpgconf --keyboxd-program --gpgconf-x"
        ),
    ),
    "openssl": Runs(starts="-engine -provider -provider-path -config -ssl_client_engine -pre -post"),
    # Containers and clusters
    **dict.fromkeys(("docker", "podman", "nerdctl"), Runs(options="--config --entrypoint --cred-helper -H --host")),
    **dict.fromkeys(("kubectl", "helm"), Runs(options="--kubeconfig --post-renderer")),
    "terraform": Runs(starts="-chdir --chdir -plugin-dir --plugin-dir"),
    "ansible": Runs(
        options="-a -i -m -M -e --args --inventory --module-name --module-path --extra-vars --ssh-common-args "
        "--ssh-extra-args --scp-extra-args --sftp-extra-args --playbook-dir"
    ),
    "ansible-playbook": Runs(
        options="-i -M -e --inventory --module-path --extra-vars --ssh-common-args --ssh-extra-args --scp-extra-args "
        "--sftp-extra-args"
    ),
    "flatpak": Runs(options="--command"),
    "sbatch": Runs(options="--wrap"),
    "gcloud": Runs(options="--command --ssh-flag --configuration --flags-file"),
    "fly": Runs(options="-C --command"),
    "asciinema": Runs(options="-c --command"),
    "ttyrec": Runs(options="-e"),
    "bpftrace": Runs(options="-c -e"),
    "systemctl": Runs(options="-H -M --host"),
}
"""For each program, the words with which it runs another program."""

HARMLESS_PLUS: Final = re.compile(r"\+(?:\d*|[/?][^|!]*)")
"""Matches the words of an editor that begin with a plus sign and only choose a line."""
CODE: Final = frozenset(
    """
    python python2 python3 pypy perl ruby node nodejs php lua tclsh Rscript julia octave gnuplot pwsh nu xonsh elvish
    """.split()  # noqa: SIM905
)
"""Interpreters, whose code may name other programs."""
