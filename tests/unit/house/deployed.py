"""What the tests of `deploy/` have in common."""

import re
from pathlib import Path
from typing import Any, Final

from loom.composition.settings import Settings

ROOT: Final = Path(__file__).parents[3]
DEPLOY: Final = ROOT / "deploy"
OWN_MEMORY: Final = 2 * 1024**3
"""The limit of a worker without commands of agents."""
Resource = dict[str, Any]


def variables() -> set[str]:
    """The names of all settings in the environment."""
    found: set[str] = set()
    for name, setting in Settings.model_fields.items():
        choices = getattr(setting.validation_alias, "choices", None) or (f"LOOM_{name.upper()}",)
        found |= {str(each) for each in choices}
    return found


def size(text: str) -> int:
    """The number of bytes that Kubernetes or Compose reads in this text."""
    found = re.fullmatch(r"(\d+)(?:([kmg])|([KMG])i)", text)
    assert found is not None, text
    return int(found[1]) << 10 * ("kmg".index((found[2] or found[3]).lower()) + 1)
