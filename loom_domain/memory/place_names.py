"""Which words are names of places and employers, and not of what else a person moves to or works for.

    I moved to Bergen        I moved to Linux       I moved to product management
    我搬到北京了              我搬到前端组了

Only what is certain counts, because a newer place replaces the older one.
"""

import re
from typing import Final


def is_proper_name(value: str, sentence: str) -> bool:
    """Whether a sentence writes the value as a name: in English with capitals, and no name of a tool or a role."""
    written = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", sentence, re.IGNORECASE)
    words = written[0].split() if written else []
    has_capitals = all(word[:1].isupper() or word in _SMALL for word in words)
    return bool(words) and has_capitals and not is_tool_or_role(value)


def is_tool_or_role(value: str) -> bool:
    """Whether all words of a value are known to be names of tools or roles."""
    return all(word in _NO_PLACES for word in value.casefold().split())


def is_chinese_place(value: str) -> bool:
    """Whether a Chinese text names a place: a known city or country, or a name with its kind behind it."""
    return _CHINESE_PLACE.fullmatch(value) is not None


_SMALL: Final = frozenset({"of", "the", "and", "de", "del", "la", "am", "upon", "an", "der", "&"})
_TOOLS: Final = (
    "linux windows macos mac osx ubuntu debian fedora arch nixos freebsd alpine gentoo wsl wsl2 android ios chromeos"
    " typescript javascript python rust go golang java kotlin swift c c++ c# f# .net ruby php scala elixir erlang"
    " haskell ocaml clojure julia r perl lua zig dart nim sql html css bash zsh fish powershell"
    " postgres postgresql mysql mariadb sqlite redis mongodb mongo cassandra kafka rabbitmq elasticsearch snowflake"
    " bigquery dynamodb supabase firebase react vue angular svelte solid next.js nextjs nuxt remix astro node node.js"
    " deno bun express django flask fastapi rails spring laravel tailwind bootstrap vite webpack esbuild rollup"
    " vim neovim emacs vscode code cursor zed sublime atom jetbrains intellij pycharm xcode helix obsidian notion"
    " github gitlab bitbucket gitea jira linear slack teams discord zoom figma confluence trello asana outlook gmail"
    " aws azure gcp google_cloud heroku vercel netlify cloudflare digitalocean hetzner docker podman kubernetes k8s"
    " terraform ansible pulumi nix helm jenkins circleci npm pnpm yarn pip poetry uv conda cargo gradle maven bazel"
    " ruff black mypy pyright pytest jest vitest eslint prettier claude chatgpt gpt gemini llama copilot ollama openai"
    " anthropic mistral deepseek temporal airflow spark hadoop pytorch tensorflow jax pandas polars numpy"
    " chrome firefox safari edge arc brave git mercurial svn markdown latex typst yaml json toml xml utf-8 utc"
)
_ROLES: Final = (
    "product management manager engineering engineer marketing sales design qa devops sre frontend front-end backend"
    " back-end fullstack platform infrastructure infra team data science analytics hr operations ops finance support"
    " security research development developer consulting freelance freelancing teaching leadership legal growth"
    " mobile web cloud ai ml it night nights home fun monday tuesday wednesday thursday friday saturday sunday"
    " version step chapter part section page phase level plan option"
)
_NO_PLACES: Final = frozenset(f"{_TOOLS} {_ROLES}".split())
_CITIES: Final = (
    "北京|上海|广州|深圳|天津|重庆|成都|杭州|南京|武汉|西安|苏州|郑州|长沙|青岛|宁波|东莞|佛山|合肥|沈阳|大连|济南|厦门|福州|哈尔滨|长春"
    "|昆明|南宁|贵阳|太原|石家庄|南昌|兰州|海口|三亚|乌鲁木齐|呼和浩特|银川|西宁|拉萨|珠海|无锡|常州|温州|泉州|烟台|徐州|洛阳|桂林|大理|丽江"
    "|香港|澳门|台北|高雄|东京|大阪|首尔|新加坡|曼谷|吉隆坡|伦敦|巴黎|柏林|慕尼黑|马德里|罗马|莫斯科|纽约|旧金山|洛杉矶|西雅图|波士顿|芝加哥"
    "|多伦多|温哥华|悉尼|墨尔本|迪拜|奥斯陆|里斯本|阿姆斯特丹|苏黎世|日本|韩国|美国|英国|法国|德国|加拿大|澳大利亚|新西兰|荷兰|瑞士|泰国|马来西亚"
)
_CHINESE_PLACE: Final = re.compile(
    rf"(?:{_CITIES})[\w]{{0,4}}?|[\u4e00-\u9fff]{{1,6}}(?:市|省|县|镇|(?<![分扇存冲作态注码域])区)"
)
