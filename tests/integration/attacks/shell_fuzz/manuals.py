"""What the options of programs run, as their manuals say. The arena's stubs behave accordingly.

This table is written independently of the one that the rules use (`options_that_run`). Otherwise, an option that the
rules read wrongly would be read wrongly here as well, and the fuzzer would find nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Manual:
    """The options of a program. In this table, code in a program's own language is a shell command."""

    flags: str = "v"
    """One-letter options without a value. They may precede another option in a cluster."""
    values: str = ""
    """Other one-letter options that take a value, attached or in the next word."""
    runs: str = ""
    """Options whose value is a command. `--option=key=` is an option whose value is a command after `key=`."""
    reads: str = ""
    """Options whose value is a file with commands."""
    folders: str = ""
    """Options whose value is a folder, or the start of a path, with programs or plugins."""
    words: Sequence[str] = ()
    """Words other than options, in which `%` stands for a command."""
    tries: Sequence[str] = ()
    """Words that a line tries, in which `%` stands for a command. Only the real program knows what they run."""
    is_exact: bool = False
    """Whether the program has no clusters and no abbreviations, and long options may have one dash."""
    has_old_cluster: bool = False
    """Whether the first word may be a cluster without a dash."""

    @property
    def lines(self) -> Sequence[str]:
        """The manual in the form that the stubs read."""
        kinds = (("run", self.runs), ("file", self.reads), ("folder", self.folders))
        return [
            f"exact {'yes' * self.is_exact}",
            f"old {'yes' * self.has_old_cluster}",
            f"flags {self.flags}",
            f"values {self.values}",
            *(f"{kind} {option}" for kind, options in kinds for option in options.split()),
            *(f"word {word}" for word in self.words),
        ]


_TAR: Final = Manual(
    flags="cxtvzjJpkhmOSWalPwUoRn",
    values="bCfgHKLNVX",
    runs="-I -F --to-command --use-compress-program --info-script --new-volume-script --rsh-command --rmt-command "
    "--checkpoint-action=exec=",
    reads="-T --files-from",
    has_old_cluster=True,
)
_MAKE: Final = Manual(
    flags="bmBdeikLnpqrRsStvw",
    values="CWo",
    runs="--eval -E",
    reads="-f --file --makefile",
    folders="-I --include-dir",
    words=("SHELL=%", ".SHELLFLAGS=-c %", "CC=%", "MAKEFLAGS=--eval=%", "x!=%", "X=$(shell %)", "MAKE=%", "HOST_CC=%"),
)
_GCC: Final = Manual(
    runs="-wrapper --wrapper -Xlinker -Xassembler --config",
    reads="@ -specs= --specs= -T -Wl,-T, -Wl,@ -Wa,@ -Wp,@ -Wl,--script=",
    folders="-B --prefix -fplugin= -fuse-ld= --ld-path= --sysroot= -Wl,-plugin, -Wl,--plugin= -fpass-plugin= "
    "--gcc-toolchain=",
    is_exact=True,
)
_BINUTILS: Final = Manual(reads="@", folders="-plugin --plugin", is_exact=True)
_SSH: Final = Manual(
    flags="46AaCfGgKkMNnqsTtVvXxYy",
    values="BbcDEeiLlmOopQRWw",
    tries=("-Jx$(%)", "-Jx`%`", "-4Jx;%"),
    runs="-oProxyCommand= -oLocalCommand= -oKnownHostsCommand= -oPKCS11Provider= -oXAuthLocation= "
    "-oRemoteCommand= -oSecurityKeyProvider=",
    reads="-F",
    folders="-I -S",
)
_NODE: Final = Manual(
    flags="ichv",
    values="C",
    runs="-e -p --eval --print",
    reads="-r --require --import --loader --experimental-loader --env-file --openssl-config",
)
_VI: Final = Manual(
    flags="bCdeEFlLmMnNRvxXyZsA",
    values="tTqi",
    runs="-c --cmd --remote-send --remote-expr",
    reads="-S -s -u -U",
    words=("+!%", "+:!%", "+silent !%"),
)
_APT: Final = Manual(
    flags="qsydfumV",
    values="ta",
    runs="-oAPT::Update::Pre-Invoke::= -oDPkg::Pre-Invoke::= --option=DPkg::Pre-Invoke::=",
    reads="-c --config-file",
)
_NPM: Final = Manual(
    flags="dgslqDfaEPO",
    values="w",
    runs="--script-shell --shell --node-options --git --editor --viewer --browser --call -c --node-gyp",
    reads="--userconfig --globalconfig --init-module --preload -r --config",
    folders="--prefix -C --dir --cwd --local-prefix",
    words=("script-shell=%", "NODE_OPTIONS=%", "editor=%"),
)
_JS: Final = Manual(
    flags="vhiobw",
    reads="-c -r --config --require --preload --plugin --resolver --parser --formatter --transform --reporters "
    "--setupFiles --globalSetup --global-setup --runner --testRunner --bootstrap --project --env --testEnvironment",
    folders="--rulesdir --resolve-plugins-relative-to --cwd",
)
_LINT: Final = Manual(flags="vqh", reads="--config --config-file --rcfile --append-config")
_AWK: Final = Manual(
    flags="OPnrstbcCgILMNS",
    values="Fvdo",
    runs="-Wexec=",
    reads="-f --file -l --load -i --include -E --exec -D --debug",
    words=('BEGIN{system("%")}', 'BEGIN { system ( "%" ) }', 'BEGIN{"%"|getline}', 'BEGIN{print|"%"}'),
)
_SED: Final = Manual(
    flags="nrsEzu",
    values="l",
    reads="-f --file",
    tries=(
        *(
            "e %",
            "e%",
            "1e %",
            "1e%",
            "1{e %",
            "$!{e %\n}",
            "1!e %",
            "/id/e %",
            "/id/Ie%",
            "\\,id,e %",
            "\\cidce%",
            "1,2e %",
        ),
        *(
            "s/id/%/e",
            "s/id/%/ge",
            "s/id/%/ep",
            "s|.*|%|e",
            "saida%ae",
            "s_id_%_e",
            "s/i\\/*d/%/2eg",
            "p;e%",
            "a x\ne%",
        ),
        *("0~1e%", ":a;e%", "ta;:a;e%", "#n\ne%", "r x\ne%", "y/a/b/;e%", "s/x/y/w z\ne%", "l5;e%", "G;}e%", "{p};e%"),
        *("-ee%", "-nee%", "-e1e%", "--expression=e%", "--exp=1e%", "-sl5e1e%", "-zee %"),
    ),
)
_MYSQL: Final = Manual(
    flags="ABCEGHLNnqrstUvVw",
    values="DehOpPRSuT",
    runs="--pager --init-command --tee",
    reads="--defaults-file --defaults-extra-file",
    folders="--plugin-dir",
    words=("\\! %", "-esystem %", "-e\\! %"),
)
_TEX: Final = Manual(
    runs="-cnf-line=shell_escape_commands= -output-driver --output-driver",
    reads="-lua --lua -fmt --fmt -lua= --lua= -fmt= --fmt=",
    words=("\\write18{%}", "\\immediate\\write18{%}", "\\input{|%}"),
    is_exact=True,
)
_GPG: Final = Manual(
    flags="abdehkqsvtn",
    values="oru",
    runs="--agent-program --photo-viewer --dirmngr-program --pinentry-program --gpgconf --keyboxd-program",
    reads="--options",
    folders="--homedir --exec-path",
)
_ANSIBLE: Final = Manual(
    flags="bCDKkov",
    values="BcflPstTu",
    runs="-a -m -e --args --module-name --extra-vars --ssh-common-args --ssh-extra-args --scp-extra-args "
    "--sftp-extra-args",
    reads="-i --inventory",
    folders="-M --module-path --playbook-dir",
)
_NC: Final = Manual(
    flags="46bCdFhklNnrStUuvzZ",
    values="IiMmOpPqsTVWwxX",
    runs="-e -c --sh-exec --exec",
    reads="--lua-exec --ssl-trustfile",
)
_RUBY_TEST: Final = Manual(
    flags="nqvtPTDAN", values="jW", runs="-e --execute -E", reads="-r -f -O --require --rakefile --options",
    folders="-I -R --libdir --rakelibdir",
)  # fmt: skip
_GO: Final = Manual(
    runs="-toolexec --toolexec -exec --exec -vettool --vettool -ldflags=-extld= --ldflags=-extld=",
    reads="-overlay --overlay -modfile --modfile",
    folders="-C --C -pkgdir --pkgdir",
    is_exact=True,
)


def _for(names: str, manual: Manual) -> Mapping[str, Manual]:
    return dict.fromkeys(names.split(), manual)


MANUALS: Final[Mapping[str, Manual]] = {
    **_for("tar gtar bsdtar", _TAR),
    **_for("cpio mt rmt", Manual(flags="oipvdumtaBc0", values="CEFHIMOR", runs="--rsh-command")),
    "pax": Manual(flags="rwadikltuvXz", values="bBfopsTxUG", runs="--use-compress-program"),
    "zip": Manual(flags="rqjmouvylXgFDe@$0123456789", values="bntPxi", runs="-TT --unzip-command"),
    "rsync": Manual(
        flags="vqcarRbudlLkKHpEAXogtDOJSnWxyCzhPi0468UN",
        values="BfT@",
        runs="-e -M --rsh --rsync-path --remote-option",
        reads="--config",
    ),
    "dump": Manual(flags="0123456789acknqSuvW", values="bBdDefhIjLQsTz", runs="-F"),
    "split": Manual(flags="deux", values="abClnt", runs="--filter"),
    "install": Manual(flags="bcCdDpsTvZ", values="gmoSt", runs="--strip-program"),
    "sort": Manual(flags="bdfghiMnRrVcCmsuz", values="koStT", runs="--compress-program"),
    "dpkg": Manual(
        flags="irPlLsSBERO", values="D", runs="--pre-invoke --post-invoke --status-logger", folders="--root --admindir"
    ),
    **_for("apt apt-get apt-cache aptitude apt-config", _APT),
    **_for(
        "yum dnf zypper",
        Manual(flags="qvyCb46", values="edx", reads="-c --config --config-file",
               folders="--installroot --root -R --plugindir"),
    ),
    "pacman": Manual(flags="QRSTUDFqyuvi", values="b", reads="--config", folders="-r --root --hookdir --gpgdir"),
    "rpm": Manual(
        flags="qaivUFeVhlpcd", runs="-D -E --eval --define --pipe", reads="--rcfile --load --macros",
        folders="--root --dbpath"),
    "rpmbuild": Manual(flags="bvq", runs="-D -E --eval --define --pipe", reads="--rcfile --load --macros"),
    "dpkg-buildpackage": Manual(
        runs="--hook-init= --hook-build= --sign-command= --check-command= -p", reads="-R --rules-file=", is_exact=True
    ),
    **_for("cc gcc g++ c++ cpp gfortran clang clang++ clang-cpp tcc", _GCC),
    **_for("ld gold ld.gold ld.bfd ld.lld lld", Manual(reads="@ -T --script= -c", folders="-plugin --plugin",
                                                       is_exact=True)),
    **_for("as ar nm strip objdump objcopy ranlib size readelf c++filt addr2line", _BINUTILS),
    "windres": Manual(reads="@", runs="--preprocessor= --preprocessor --preprocessor-arg=", is_exact=True),
    "rustc": Manual(reads="@", runs="-Clinker= --codegen=linker=", folders="--sysroot= -L", is_exact=True),
    "rustdoc": Manual(reads="@ --theme", runs="-Clinker= --runtool= --test-runtool= --runtool", is_exact=True),
    "cargo": Manual(
        flags="qv", values="jpF", runs="--config=build.rustc-wrapper=", reads="--config", folders="-C --manifest-path",
        words=("+%",)),
    "go": _GO,
    "golangci-lint": Manual(reads="-c --config"),
    "javac": Manual(reads="@", folders="-processorpath --processor-path", runs="-J-XX:OnError=", is_exact=True),
    "java": Manual(
        reads="@ -javaagent: -agentpath: -XX:Flags= -XX:VMOptionsFile=", runs="-XX:OnError= -XX:OnOutOfMemoryError=",
        is_exact=True),
    "jar": Manual(reads="@", runs="-J-XX:OnError=", is_exact=True),
    "mvn": Manual(flags="qXBUoeNV", values="lpDT", reads="-f -s -t --file --settings --toolchains"),
    "gradle": Manual(
        flags="qidwSsahmt", values="xPD", reads="-I -b -c --init-script --build-file --settings-file",
        folders="-p -g --project-dir --gradle-user-home --include-build"),
    "ant": Manual(reads="-f -file -buildfile -propertyfile", folders="-lib -logger -listener", is_exact=True),
    "protoc": Manual(reads="@", runs="--plugin= --plugin", is_exact=True),
    **_for("bison yacc", Manual(flags="dltvVgxk", values="bpoLFrW", reads="-S --skeleton")),
    "flex": Manual(flags="78BbdFfhilLnpstTvVwx+?", values="oPC", reads="-S --skel"),
    "swig": Manual(reads="@", is_exact=True),
    "ccache": Manual(flags="cCszpV", values="FMo", reads="--config-path"),
    **_for("make gmake bmake mingw32-make mingw32-make.exe remake nmake", _MAKE),
    "ninja": Manual(flags="vnh", values="Cjkldtw", reads="-f"),
    "cmake": Manual(
        reads="-P -C --toolchain --preset --toolchain=", folders="-S", runs="-E",
        words=("-DCMAKE_C_COMPILER=%", "-DCMAKE_C_COMPILER_LAUNCHER:STRING=%", "GIT_EXECUTABLE=%"), is_exact=True),
    "ctest": Manual(
        reads="-S -SP --script --script-new-process", runs="--build-makeprogram --test-command", is_exact=True),
    "meson": Manual(flags="hv", reads="--native-file --cross-file", runs="--wrap --wrapper --gdb-path"),
    "bazel": Manual(
        flags="ck", values="j", runs="--run_under --shell_executable --workspace_status_command --credential_helper",
        reads="--bazelrc"),
    "buck": Manual(reads="--config-file", runs="-c --config"),
    **_for(
        "pytest py.test",
        Manual(flags="qvxsl", values="kmrWn", reads="-p -c -o --config-file --override-ini --pdbcls",
               folders="--rootdir --confcutdir")),
    "tox": Manual(flags="qvrplah", values="ef", reads="-c --conf", runs="-x --override",
                  folders="--workdir --root --runner"),
    "nox": Manual(flags="lrRN", values="eskptd", reads="-f --noxfile"),
    **_for("pip pip3", Manual(flags="qvUI", values="rcetd", runs="--config-settings --python --editor --global-option "
                                                             "--build-option")),
    "virtualenv": Manual(flags="qv", runs="-p --python", folders="--app-data --extra-search-dir", reads="--creator"),
    "uv": Manual(flags="qvn", values="cre", runs="-p --python", reads="--config-file --env-file"),
    "mypy": Manual(flags="vqh", values="cmp", reads="--config-file", runs="--python-executable",
                   folders="--custom-typeshed-dir"),
    "pylint": Manual(flags="vhEd", values="jfr", runs="--init-hook", reads="--load-plugins --rcfile"),
    **_for("flake8 black coverage ruff bandit yapf autopep8", _LINT),
    "isort": Manual(flags="qcde", reads="--settings-path --settings-file --sp --config-root"),
    "sphinx-build": Manual(flags="aEnqQTvWN", values="bdjtAw", folders="-c", runs="-D"),
    "django-admin": Manual(flags="h", folders="--pythonpath"),
    "gunicorn": Manual(flags="Dhv", values="bwtpugnm", reads="-c --config --logger-class -k --worker-class",
                       folders="--chdir --pythonpath"),
    "uwsgi": Manual(
        flags="Mdh", values="spHCz", runs="--exec-pre-app --exec-asap --hook-asap --attach-daemon",
        reads="--plugins --import --ini", folders="--python-path"),
    "pre-commit": Manual(flags="av", reads="-c --config"),
    "twine": Manual(flags="s", values="iur", runs="--sign-with", reads="--config-file"),
    **_for("npm pnpm yarn npx bun", _NPM),
    **_for("node nodejs ts-node", _NODE),
    "deno": Manual(flags="AqrLh", values="", reads="--config --preload --import-map -c --import", runs="--eval"),
    **_for(
        "jest webpack vite vitest rollup prettier babel phpunit ava esbuild stylelint", _JS),
    "eslint": replace(_JS, reads=f"{_JS.reads} -f"),
    "mocha": replace(_JS, reads=f"{_JS.reads} -R -u --ui --file"),
    "tsc": Manual(flags="wbv", values="pt", reads="--plugins"),
    "composer": Manual(flags="qnvh", folders="-d --working-dir"),
    "php": Manual(flags="ailmnqsvw", values="StHr", runs="-B -R -E --define -d", reads="-c -z -F --php-ini "
                                                                                     "--zend-extension"),
    "rake": replace(_RUBY_TEST, runs="-e -p -E --execute --execute-print --execute-continue"),
    "rspec": replace(_RUBY_TEST, flags="bcdfhnvw", values="EPt", runs=""),
    "ruby": Manual(flags="acdhlnpsSvwyU0", values="eEFKTxW", reads="-r --require", folders="-I -C"),
    "gem": Manual(flags="qVhi", values="nvr", folders="-C", reads="--config-file"),
    "bundle": Manual(flags="v", runs="--ext", reads="--gemfile"),
    "perl": Manual(reads="-M -m -d:", folders="-I", is_exact=True),
    "lua": Manual(flags="iEWv", values="e", reads="-l"),
    "rg": Manual(flags="acFHhILlnNoPpqsSUuvVwxz0.", values="ABCdEefgjmMrtT", runs="--pre --hostname-bin"),
    **_for("bat batcat delta", Manual(flags="AnpPf", values="lHmr", runs="--pager", reads="--config-file")),
    **_for("ag ack ugrep ug", Manual(flags="acfhHiIlLnopqsSuvwzQ0@%?^", values="ABCGmegt", runs="--pager --filter",
                                     reads="--ackrc --config")),
    "man": Manual(flags="adfgikKluwWt7DXhV?", values="BeELmprRsST", runs="-P -H --pager --html --preprocessor",
                  reads="-C --config-file", folders="-M"),
    **_for("diff3 sdiff", Manual(flags="aAeEimTxX3bBdEHlst", values="LoIw", runs="--diff-program")),
    "patch": Manual(flags="bcefElNRnstTuvZ", values="BdDFiopRVYxz", runs="-g --get --ed"),
    **_for("sed gsed", _SED),
    **_for("awk gawk mawk nawk", _AWK),
    "jq": Manual(flags="acCeijnrRsS", values="", reads="-f --from-file", folders="-L"),
    "yq": Manual(flags="cCejMnNPrv", values="iIops", reads="--from-file", words=('load("%")', 'system("%")')),
    "less": Manual(
        flags="aABcCeEfFgGiIJKLmMnNqQrRsSuUVwWX~?", values="bhjoOpPtxyzD#\"",
        runs="--lesskey-content", reads="-k -T --lesskey-file --lesskey-src --tag-file",
        words=("+!%", "++!%", "+G!%", "+g|a%")),
    "more": Manual(flags="dflcpsue", values="n", words=("+!%", "+:!%")),
    **_for("vim vi nvim ex view gvim vimdiff rvim", _VI),
    "emacs": Manual(flags="Qqn", values="dtu", runs="-f --eval --execute --funcall", reads="-l --load --script "
                                                                                           "--insert",
                    folders="-L --directory"),
    "nano": Manual(flags="ABcdDEFghHijklLmMnNpPqRStuvVwxyzZ%/!@0+", values="CTQroXYJ", runs="-s --speller",
                   reads="-f --rcfile"),
    "ed": Manual(flags="EGlrsv", values="p", words=("!%",)),
    **_for("dc bc", Manual(flags="hVilqsw", runs="-e --expression", reads="-f --file", words=("!%",))),
    "ctags": Manual(flags="aBeFnNRuVvwxV?", values="fhiILlot", reads="--options --options-maybe", folders="--optlib-dir"
                                                                                                        ),
    "pandoc": Manual(
        flags="spNvhi", values="frtowMVHABTcm", runs="-F --filter --pdf-engine", reads="-L -d --lua-filter --defaults",
        folders="--data-dir"),
    **_for("groff troff nroff", Manual(flags="abceghiklNpRsStUVXzZjG", values="dfKLmnorTwW", runs="-P", reads="",
                                       folders="-F -M")),
    **_for("latex pdflatex xelatex lualatex tex pdftex luatex", _TEX),
    "latexmk": Manual(
        runs="-e -pdflatex= -latex= -xelatex= -lualatex= -usepretex= -pretex= -bibtex=", reads="-r", is_exact=True),
    "gnuplot": Manual(flags="pV", runs="-e", reads="-c"),
    "gs": Manual(reads="@", runs="-c", folders="-I", is_exact=True),
    **_for("geninfo lcov genhtml", Manual(flags="qvhfs", values="abdot", runs="--demangle-cpp --gcov-tool "
                                                                             "--annotate-script --version-script",
                                          reads="--config-file")),
    **_for(
        "convert magick mogrify identify compare composite montage import display animate stream conjure gm",
        Manual(words=("msl:%", "ephemeral:%", "|%", "mvg:%")),
    ),
    **_for("sox play rec soxi", Manual(words=("|%",))),
    "curl": Manual(
        flags="fsSLkvgGIijJNOqRZ0123468aBlnpM#", values="AbcCdDeEFhHmoPQrtTuUwxXyYz:", reads="-K --config",
        folders="--engine"),
    "wget": Manual(
        flags="bcdEFhHkKLmNpqrSvVx0123456789", values="aABDiIlOoPQRtTUwXn", runs="-e --execute --use-askpass",
        reads="--config"),
    "aria2c": Manual(runs="--on-download-complete= --on-download-start= --on-download-error",
                     reads="--conf-path= --input-file= -i", is_exact=True),
    **_for("ssh slogin autossh ssh-copy-id", _SSH),
    "scp": Manual(flags="346ABCOpqRrTv", values="ciJloPX", runs=f"{_SSH.runs} -S -D -M", reads="-F"),
    "sftp": Manual(flags="46AaCfNpqrv", values="BciJloPRX", runs=f"{_SSH.runs} -S -D -s", reads="-F -b"),
    "sshfs": Manual(flags="dfsCh1", values="pFo", runs="-ossh_command= -oProxyCommand=", reads="-F"),
    "ssh-keygen": Manual(flags="qBcehHiklLpQuvyAKM", values="abCEfFGIJjmMnNOPRrsStTUVWYzZ", folders="-D -w"),
    "ssh-add": Manual(flags="cdDkKlLqTvxX", values="EHhtS", folders="-s"),
    "mosh": Manual(flags="46an", values="p", runs="--ssh --server --client"),
    **_for("nc ncat netcat", _NC),
    "socat": Manual(flags="dDhuUvxsV", values="blLtTw", words=("EXEC:%", "exec:%,pty", "SYSTEM:%", "SHELL:%")),
    "lftp": Manual(flags="dv", values="puo", runs="-e -c", reads="-f"),
    "ftp": Manual(flags="46Aadeginpv", words=("|%",)),
    "nmap": Manual(flags="6AFhnRv", values="ideDgSmTop", runs="--script-args", reads="--script --resume",
                   folders="--datadir"),
    "tcpdump": Manual(flags="AbdDefhHIJKlLnNOpqStuUvxX#", values="BcCEFGijmMQrsTVwWyZ", runs="-z"),
    "tshark": Manual(flags="DLhlnNpPqQSvVx2", values="abBcdeEfFGiHjJKoOrRstTuUwWXyYz", folders="-C", runs="-X"),
    "rclone": Manual(flags="ivnPq", values="I", runs="--password-command --sftp-ssh --webdav-bearer-token-command",
                     reads="--config"),
    "restic": Manual(flags="qv", values="rp", runs="--password-command -osftp.command= --option=sftp.command="),
    "borg": Manual(flags="vpqn", runs="--rsh"),
    "ip": Manual(flags="VhsdI46BMDoptrNajc0", values="lfn", reads="-b -batch"),
    "mail": Manual(flags="aBdDEeHiInNpRv~", values="bcfqrstu", runs="-S"),
    "mutt": Manual(flags="BDEnpRvxyzZ", values="abcfghHijmQstu", runs="-e", reads="-F"),
    "mount": Manual(flags="acfFhinrsvVw", values="LloOU", runs="-t --types"),
    "svn": Manual(flags="qvNgx", values="rmF", runs="--config-option --diff-cmd --diff3-cmd --editor-cmd",
                  folders="--config-dir"),
    "hg": Manual(flags="qvyh", values="r", runs="--ssh --config=alias.x=! --config=ui.ssh=", folders="-R --repository "
                                                                                                "--cwd",
                 reads="--config-file"),
    "cvs": Manual(flags="HQqrwtvnflRx", values="Tsaz", runs="-e", folders="-d"),
    "gh": Manual(words=("!%",)),
    "sqlite3": Manual(
        runs="-cmd --cmd", reads="-init --init", tries=(" .shell %", "select 1;\n.shell %", ".sy %"),
        words=(".shell %", ".system %", ".sh %", ".once |%", ".read |%"), is_exact=True),
    "psql": Manual(flags="aAbeEHlnqsStVwWxXz01", values="cdFhLopPRTUv", reads="-f --file",
                   words=("-c\\! %", "\\! %", "\\o |%", "copy t to program '%'", "-o|%", "\\g |%", "select 1 \\g | %")),
    **_for("mysql mariadb", _MYSQL),
    **_for("mysqldump mysqladmin", replace(_MYSQL, runs="--init-command", words=())),
    "redis-cli": Manual(flags="cx", values="hpsnadutri", reads="--eval"),
    "mongosh": Manual(flags="hv", values="up", runs="--eval", reads="-f --file"),
    **_for("gpg gpg2 gpgv", _GPG),
    "openssl": Manual(folders="-engine -provider -provider-path", reads="-config", is_exact=True),
    **_for("docker podman nerdctl", Manual(flags="Dv", values="lc", runs="-H --host", folders="--config")),
    **_for("kubectl helm", Manual(flags="v", values="nsl", runs="--post-renderer", reads="--kubeconfig")),
    "terraform": Manual(folders="-chdir= --chdir= -plugin-dir= --plugin-dir=", is_exact=True),
    "ansible": _ANSIBLE,
    "ansible-playbook": replace(
        _ANSIBLE,
        runs="-e --extra-vars --ssh-common-args --ssh-extra-args --scp-extra-args --sftp-extra-args",
        folders="-M --module-path",
    ),
    "flatpak": Manual(flags="vu", runs="--command"),
    "sbatch": Manual(flags="HhIkOQsvW", values="AbcCdDeGiJLmMnNopqtw", runs="--wrap"),
    "gcloud": Manual(flags="q", runs="--command --ssh-flag", reads="--flags-file"),
    "fly": Manual(flags="tvj", values="ac", runs="-C --command"),
    "asciinema": Manual(flags="qyh", values="tie", runs="-c --command"),
    "ttyrec": Manual(flags="ua", runs="-e"),
    "bpftrace": Manual(flags="dhklvV", values="Bfop", runs="-c -e"),
    "systemctl": Manual(flags="alqfhr", values="tpnoPs", runs="-H --host"),
}  # fmt: skip
"""The manuals of the programs whose options run others, by name."""
