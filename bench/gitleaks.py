"""Measure how many of gitleaks' own samples are redacted: `python -m bench.gitleaks FOLDER`.

FOLDER is a copy of gitleaks' source, which isn't part of this repository. Its rules state in Go which texts they must
find (`cmd/generate/config/rules`), and `config/gitleaks.toml` has the same rules as regular expressions. Only the
samples that gitleaks' authors wrote down count, not those that gitleaks generates.
"""

import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.report import table
from loom.activities.adapters.redaction.mask import SecretMask
from tests.corpora.secrets.ordinary import ordinary_code
from tests.corpora.secrets.samples import Sample, leaks

_RULE: Final = re.compile(r'RuleID:\s*"([^"]+)"')
_SAMPLES: Final = re.compile(r"\btps\s*:=.*?(?=\n\s*fps\b|\n\s*return\b)", re.DOTALL)
_COMMENT: Final = re.compile(r"(?m)^\s*//.*$|[ \t]// .*$")
_STRING: Final = re.compile(r"""`[^`]*`|"(?:[^"\\\n]|\\.)*\"""")
_STRINGS: Final = rf"(?:{_STRING.pattern})(?:\s*\+\s*(?:{_STRING.pattern}))*"
_ELEMENT: Final = re.compile(
    rf"""(?:(?P<call>[gG]enerateSampleSecrets?\("(?P<name>[^"]*)",)|(?m:^|[,{{])\s*(?:"[^"\n]*":)?)\s*"""
    rf"""(?P<value>{_STRINGS})\s*(?=(?(call)\)|[,}}\)]))"""
)
_CREDENTIALS: Final = re.compile(r"""["']?[^:/\n]+["']?:[\s|>"']*(?P<password>[^:/\s]\S{3,}?)["']?""")
_WEBHOOK: Final = re.compile(r"https?://.+/(?P<password>\w+)")
_ARMOR: Final = re.compile(r"-----(?:BEGIN|END)[^-]*-----")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in gitleaks' configuration."""

    pattern: re.Pattern[str]
    group: int
    keywords: tuple[str, ...]

    def secret(self, text: str) -> str | None:
        """Return the part of the text that gitleaks reports."""
        found = self.pattern.search(text)
        if found is None:
            return None
        groups = (found[self.group],) if self.group else found.groups()
        return next((group for group in groups if group), found[0])

    def has_own_format(self, secret: str) -> bool:
        """Whether the secret itself contains a word that gitleaks looks for, and not just the text around it."""
        return any(keyword.lower() in secret.lower() for keyword in self.keywords)


def rules(config: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the rules by id."""
    return {
        rule["id"]: Rule(_pattern(rule["regex"]), rule.get("secretGroup", 0), tuple(rule.get("keywords", ())))
        for rule in config["rules"]
        if "regex" in rule
    }


def _pattern(go: str) -> re.Pattern[str]:
    """Return Go's pattern as Python's. Flags in the middle apply to all of it, so it may match more."""
    return re.compile(go.replace("(?i)", "").replace("(?-i:", "(?:").replace(r"\z", r"\Z"), re.IGNORECASE)


def literal_samples(source: str) -> Iterator[tuple[str, str]]:
    """Yield the id of each rule in a Go file with each of the rule's samples that is written out."""
    for function in re.split(r"^func ", source, flags=re.MULTILINE)[1:]:
        if (rule := _RULE.search(function)) is not None:
            for block in _SAMPLES.finditer(function):
                yield from ((rule[1], sample) for sample in _elements(block[0]))


def _elements(block: str) -> Iterator[str]:
    """Yield the strings in Go lists and maps. `GenerateSampleSecret(name, literal)` stands for an assignment."""
    for element in _ELEMENT.finditer(_COMMENT.sub("", block)):
        pieces = _STRING.findall(element["value"])
        text = "".join(piece[1:-1] if piece.startswith("`") else json.loads(piece) for piece in pieces)
        yield text if element["call"] is None else f'{element["name"]}_api_token = "{text}"'


def _hidden(secret: str) -> str:
    """Return the part that must not remain: the value of `name: value`, the end of a URL, a key without its armor."""
    credentials = _CREDENTIALS.fullmatch(secret) or _WEBHOOK.fullmatch(secret)
    return credentials["password"] if credentials else _ARMOR.sub("", secret).strip()


def measure(folder: Path) -> str:
    """Return the results as Markdown, followed by the rules whose samples are missed."""
    known = rules(tomllib.loads((folder / "config/gitleaks.toml").read_text()))
    outcomes: defaultdict[bool, list[tuple[str, bool]]] = defaultdict(list)
    unmatched = 0
    for path in sorted((folder / "cmd/generate/config/rules").glob("*.go")):
        for name, text in dict.fromkeys(literal_samples(path.read_text())):
            secret = known[name].secret(text) if name in known else None
            if secret is None:
                unmatched += 1
                continue
            sample = Sample(kind=name, text=text, secret=_hidden(secret))
            is_found = not leaks(sample, SecretMask([]).redact(text))
            outcomes[known[name].has_own_format(secret)].append((name, is_found))
    code, mask = ordinary_code(8_000_000), SecretMask([])
    rows: list[list[str | int]] = [
        [
            kind,
            len(outcomes[own]),
            sum(found for _, found in outcomes[own]),
            f"{100 * sum(found for _, found in outcomes[own]) / max(1, len(outcomes[own])):.1f} %",
        ]
        for own, kind in ((True, "with a format of their own"), (False, "others"))
    ]
    missed = sorted({name for results in outcomes.values() for name, found in results if not found})
    return "\n\n".join(
        (
            table(["literal samples", "number", "redacted", "share"], rows),
            f"Samples that gitleaks' own configuration doesn't match, or whose rule it lacks: {unmatched}",
            f"Ordinary source code, {len(code) / 1e6:.1f} MB: {len(mask.spans(code))} places changed",
            f"Rules with samples that are missed: {', '.join(missed) or 'none'}",
        )
    )


if __name__ == "__main__":
    sys.stdout.write(f"{measure(Path(sys.argv[1]))}\n")
