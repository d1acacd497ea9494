"""Guard the files that other programs run automatically or follow as instructions, and files with secrets.

Source files, build files and project files such as `Makefile` or `pyproject.toml` aren't guarded, because they run only
if someone asks for it.
"""

import re
from fnmatch import fnmatchcase
from typing import Final

from loom.domain.permissions.command_words import alternatives, program_of
from loom.domain.permissions.guards.removal import REMOVERS
from loom.domain.permissions.subjects import Subject

_MADE: Final = frozenset(
    {
        *(".venv", "venv", ".tox", ".nox", "site-packages", "dist-packages", "__pycache__"),
        *("node_modules/.bin", ".yarn", ".direnv"),
    }
)
"""Folders with code that a later command runs. They may be removed, because programs can create them again."""

_FOLDERS: Final = frozenset(
    """
    .git .hg .svn .ssh .gnupg .vscode .idea .devcontainer .husky .lefthook .mise .cargo .mvn .bundle
    .circleci .buildkite .woodpecker .github/workflows .github/actions .gitea/workflows .forgejo/workflows
    .loom .agents .claude .codex .cursor .gemini .windsurf .clinerules .roo .continue .kiro .junie .amazonq .opencode
    .qwen .augment .github/instructions .github/prompts .github/agents .github/chatmodes .github/skills .github/hooks
    """.split()  # noqa: SIM905 - a list would fill a whole screen
)
_FILES: Final = frozenset(
    """
    .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout
    .kshrc .inputrc .pythonrc .pdbrc .gdbinit .lldbinit .exrc .vimrc .nvimrc .nvim.lua .emacs .dir-locals.el .tmux.conf
    .screenrc .rprofile .irbrc .pryrc .psqlrc .sqliterc .curlrc .wgetrc
    .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnpmfile.mjs pnpmfile.js .pypirc pip.conf .netrc .gitconfig .gitmodules
    .envrc mise.toml .mise.toml mise.local.toml .mise.local.toml .devcontainer.json .gitpod.yml .gitpod.yaml .replit
    .pre-commit-config.yaml .pre-commit-config.yml lefthook.yml lefthook.yaml lefthook.toml lefthook.json
    lefthook-local.yml lefthook-local.yaml .lefthook.yml .lefthook.yaml .lefthook.toml .overcommit.yml
    .gitlab-ci.yml .travis.yml appveyor.yml .appveyor.yml azure-pipelines.yml bitbucket-pipelines.yml jenkinsfile
    .drone.yml .woodpecker.yml .woodpecker.yaml .cirrus.yml buildspec.yml cloudbuild.yaml
    conftest.py sitecustomize.py usercustomize.py
    .mcp.json loom.toml agents.md agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md skill.md
    .cursorrules .windsurfrules .roorules .goosehints .aider.conf.yml opencode.json opencode.jsonc
    .github/copilot-instructions.md
    """.split()  # noqa: SIM905 - a list would fill a whole screen
)
_SHAPES: Final = re.compile(r"\.env(?!\.(?:example|sample|template|dist)$)(?:\..+)?|.*\.pth")
"""Matches environment files, and files with code that Python runs when it starts."""


def protected(path: str, *, is_removed: bool = False) -> str:
    """Return the part of a path that controls other programs or contains secrets, or an empty string."""
    names = _FOLDERS | _FILES if is_removed else _FOLDERS | _FILES | _MADE
    parts = [part.lower() for part in path.split("/")]
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        if part in names or _SHAPES.fullmatch(part):
            return part
        if (pair := f"{part}/{following}") in names:
            return pair
    return ""


def written_by(subject: Subject) -> str:
    """Return the protected part of a file that a command writes, or an empty string."""
    is_removed = program_of(subject.words) in REMOVERS
    written = [file for file in subject.files if file.tool == "write_file"]
    named = (protected(file.text, is_removed=is_removed) for file in written)
    spread = (_spread(word) for file in written if file.opaque for word in alternatives(file.text))
    return next((name for name in (*named, *spread) if name), "")


def _spread(path: str) -> str:
    """Return the protected part that a glob with a leading dot may match, or an empty string. Other globs are too wide
    for a decision.
    """
    if found := protected(path):
        return found
    globs = [part.lower() for part in path.split("/") if part.startswith(".") and set(part) & set("*?[")]
    return next((name for glob in globs for name in sorted(_FOLDERS | _FILES) if fnmatchcase(name, glob)), "")
