"""The files that programs obey without being asked to. Guards and the sandbox share this table.

A name is listed if a public tool documents that it reads the file by itself, and either runs something from it or
follows it as instructions. Project files such as `Makefile`, `pyproject.toml` or `package.json` aren't listed, because
agents edit them all the time and they run only if someone builds or tests the project. All names are in lower case.
"""

import re
from dataclasses import dataclass
from typing import Final

_AGENTS: Final = """
    .agents .agent .claude .claude-plugin .codex .cursor .gemini .windsurf .codeium .clinerules .cline .roo .continue
    .kiro .junie .amazonq .opencode .qwen .augment .zed .kilocode .kilo .trae .crush .warp .amp .openhands .goose
    .factory .aiassistant .tabnine .rovodev .antigravity .qoder .codebuddy .lingma .iflow .copilot .ruler .mcp
    .github/instructions .github/prompts .github/agents .github/chatmodes .github/skills .github/hooks
    .github/copilot-instructions.md
    agents.md agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md warp.md crush.md crush.local.md
    replit.md airules.md skill.md .rules .cursorrules .windsurfrules .roorules .roomodes .kilocodemodes .kilocoderules
    .voidrules .goosehints .openhands_instructions .augment-guidelines .continuerc.json .aider.conf.yml
    .aider.model.settings.yml .aider.model.metadata.json opencode.json opencode.jsonc crush.json .crush.json
    .claude.json .mcp.json mcp.json mcp.jsonc mcp_config.json mcp_settings.json cline_mcp_settings.json
    claude_desktop_config.json .loom loom.toml
"""
"""Instructions, skills, hooks and settings of agents, and the settings of MCP clients."""

_SHELLS: Final = """
    .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout
    .kshrc .mkshrc .cshrc .tcshrc .login .logout .xonshrc .inputrc .xprofile .xinitrc .xsession .pam_environment
    .config/fish .config/nushell .config/powershell .config/environment.d .config/systemd .config/autostart .local/bin
    .autoenv .autoenv.zsh .autoenv_leave.zsh .shadowenv.d .config/direnv .config/mise .config/mise.toml .mise
    .miserc.toml mise.toml .mise.toml mise.local.toml .mise.local.toml .env .envrc
    .tmux.conf .screenrc .dircolors .lessfilter .lesskey .mailcap .procmailrc .forward
    .pythonrc .pythonrc.py .pdbrc .pdbrc.py .ipython .jupyter .gdbinit .lldbinit .rprofile .renviron .irbrc .pryrc
    .ghci .ocamlinit .utoprc .iex.exs .erlang .octaverc .juliarc.jl .guile .sbclrc .psqlrc .sqliterc .my.cnf
    .curlrc .wgetrc .netrc _netrc .pgpass .ssh .gnupg
"""
"""Files that shells, loaders of environments and interactive programs read when they start, and files with secrets."""

_EDITORS: Final = """
    .vscode .vs .idea .fleet .nova .theia .run .devcontainer .devcontainer.json .gitpod.yml .gitpod.yaml .replit .idx
    .exrc .vimrc .gvimrc _vimrc .lvimrc .local.vimrc .nvimrc .nvim.lua .vim .config/nvim .ycm_extra_conf.py
    .emacs .emacs.d .dir-locals.el .dir-locals-2.el .helix .config/helix .config/zed .kakrc .nanorc .luarc.json .clangd
    .externaltoolbuilders
"""

_REPOSITORIES: Final = """
    .git .hg .svn .jj .sl .bzr .gitmodules .gitattributes .gitconfig .hgrc .config/git .husky .huskyrc
    .lefthook .lefthook.yml lefthook.yml lefthook-local.yml .githooks .git-hooks .pre-commit-config.yaml
    .pre-commit-config.yml .pre-commit-hooks.yaml prek.toml .overcommit.yml
    captainhook.json grumphp.yml .rusty-hook.toml .gitlint
"""
"""Repositories, and what runs when somebody uses one."""

_BUILDS: Final = """
    .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnpmfile.mjs pnpmfile.js .pnp.cjs .pnp.loader.mjs bunfig.toml .bunfig.toml
    .pypirc pip.conf pip.ini .pydistutils.cfg uv.toml .config/pip .config/uv .condarc
    .cargo rust-toolchain rust-toolchain.toml .mvn .mavenrc .sbtopts .sbtrc .jvmopts
    gradle/wrapper .bundle .gemrc .rspec .bazelrc user.bazelrc .bazelversion .bazeliskrc cmakeuserpresets.json
    ansible.cfg .ansible.cfg .terraformrc terraform.rc conftest.py sitecustomize.py usercustomize.py
"""
"""What package managers, build tools and Python read by themselves."""

_CONTINUOUS_INTEGRATION: Final = """
    .github/workflows .github/actions .gitea/workflows .gitea/actions .forgejo/workflows .forgejo/actions
    .gitlab-ci.yml .gitlab/ci .circleci .buildkite .woodpecker .woodpecker.yml .woodpecker.yaml .travis.yml
    appveyor.yml .appveyor.yml azure-pipelines.yml azure-pipelines.yaml .azure-pipelines .azuredevops .pipelines
    bitbucket-pipelines.yml jenkinsfile .drone.yml .drone.yaml .drone.star .cirrus.yml .cirrus.star
    buildspec.yml buildspec.yaml cloudbuild.yaml cloudbuild.yml cloudbuild.json .semaphore .teamcity codemagic.yaml
    .builds .build.yml .tekton .harness .prow.yaml .zuul.yaml zuul.yaml .zuul.d zuul.d wercker.yml .scrutinizer.yml
    .readthedocs.yaml .readthedocs.yml buildkite.yml buildkite/pipeline.yml .onedev-buildspec.yml .cnb.yml .workflow
    .vsts-ci.yml
"""

_OF_CI: Final = frozenset(_CONTINUOUS_INTEGRATION.split())
_CI_SHAPES: Final = r".+\.gitlab-ci\.ya?ml | jenkinsfile(?:\..+)?"

NAMES: Final = frozenset(f"{_AGENTS} {_SHELLS} {_EDITORS} {_REPOSITORIES} {_BUILDS} {_CONTINUOUS_INTEGRATION}".split())
"""Names of files and folders, and pairs of a folder and a name in it."""
PARENTS: Final = frozenset(name.partition("/")[0] for name in NAMES if "/" in name)
"""The folders of the pairs."""

SHAPES: Final = re.compile(
    rf"""
    \.env(?:rc)?(?!\.(?:example|sample|template|dist)$)(?:\..+)?                        # environments
    | \.?mise(?:\..+)?\.toml | \.mcp\..+\.json
    | \.?lefthook(?:-local)?\.(?:ya?ml|toml|json) | \.huskyrc\..+                       # hooks of repositories
    | \.lintstagedrc(?:\..+)? | lint-staged\.config\..+ | \.?simple-git-hooks\..+
    | \.commitlintrc(?:\..+)? | commitlint\.config\..+
    | \.clinerules-.+ | \.roorules-.+ | \.kilocoderules-.+                              # instructions for agents
    | .+\.code-workspace | .+\.sublime-(?:project|workspace|build|settings)             # editors
    | .*\.run\.xml
    | {_CI_SHAPES}
    """,
    re.VERBOSE,
)
"""Matches further names."""

REMADE: Final = frozenset(
    {
        *(".venv", "venv", ".tox", ".nox", "site-packages", "dist-packages", "__pycache__", "pyvenv.cfg"),
        *("node_modules/.bin", ".yarn", ".direnv"),
    }
)
"""Code that a later command runs, and that package managers write. Such files may be removed, because programs can
create them again. The sandbox leaves them writable.
"""
REMADE_SHAPES: Final = re.compile(r".*\.pth")
"""Matches files with code that Python runs when it starts. The name is also that of data, such as a trained model."""

PRODUCED: Final = frozenset(
    """
    .venv venv .tox .nox site-packages dist-packages __pycache__ .yarn .direnv
    node_modules bower_components jspm_packages vendor pods carthage deps _build .build build dist out target .next
    .nuxt .output .svelte-kit .parcel-cache .turbo .cache .gradle .terraform .dart_tool .eggs .stack-work dist-newstyle
    elm-stuff .pnpm-store .mypy_cache .ruff_cache .pytest_cache coverage htmlcov
    """.split()  # noqa: SIM905 - a list would fill a whole screen
)
"""Folders that package managers and build tools fill. In them, nobody obeys the files of other projects."""


DEFINITIONS: Final = re.compile(r"agents/[^/]+\.(?:ya?ml|toml)|crews/[^/]+\.(?:ya?ml|toml|json)")
"""Matches the files of agents and crews in a workspace, which a worker reads if its app is in that workspace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFiles:
    """What a worker reads as code or instructions. All paths are absolute."""

    folders: frozenset[str] = frozenset()
    """Folders of agents, crews and skills. They don't have to exist."""
    files: frozenset[str] = frozenset()
    """The app's module, the modules that it imports, and the programs of MCP servers. Files that Python would prefer to
    these modules don't exist.
    """

    def __contains__(self, path: object) -> bool:
        """Whether the path is one of the folders or files. There may be thousands, so no call copies them."""
        return path in self.folders or path in self.files


NO_FILES: Final = WorkerFiles()


def is_obeyed(name: str, folder: str = "") -> bool:
    """Whether programs obey a file or folder with this name. `folder` is the name of the folder that contains it."""
    name = name.lower()
    return name in NAMES or f"{folder.lower()}/{name}" in NAMES or SHAPES.fullmatch(name) is not None


def is_continuous_integration(path: str) -> bool:
    """Whether pushing a file with this path can make a Git host run commands."""
    parts = path.lower().split("/")
    return (
        parts[0] in _OF_CI
        or "/".join(parts[:2]) in _OF_CI
        or re.fullmatch(_CI_SHAPES, parts[-1], re.VERBOSE) is not None
    )


def is_remade(name: str, folder: str = "") -> bool:
    """Whether a file or folder with this name is code that programs can create again."""
    name = name.lower()
    return name in REMADE or f"{folder.lower()}/{name}" in REMADE or REMADE_SHAPES.fullmatch(name) is not None
