"""Scripts that say of themselves that they are tools."""

import pytest

from loom.domain.core.tool_calls import Effect, Scope, Verdict
from loom.domain.skills.documents import BrokenSkill
from loom.domain.skills.scripts import GRACE, tool_of

BLOCK = """\
#!/usr/bin/env python3
# /// loom-tool
# description = "Count the words of a text."
# timeout = 30
#
# [parameters.text]
# type = "string"
# [parameters.unit]
# enum = ["words", "lines"]
# default = "words"
# ///
print()
"""


def test_a_block_makes_a_script_a_tool_that_asks() -> None:
    tool = tool_of(BLOCK, "skill__text__count", timeout=120)
    assert tool is not None
    assert (tool.name, tool.description, tool.timeout) == (
        "skill__text__count",
        "Count the words of a text.",
        30 + GRACE,
    )
    assert (tool.effect, tool.scope, tool.declared, tool.parallel) == (Effect.ONCE, Scope.SYSTEM, Verdict.ASK, False)
    assert tool.parameters == {
        "type": "object",
        "properties": {"text": {"type": "string"}, "unit": {"enum": ["words", "lines"], "default": "words"}},
        "required": ["text"],
        "additionalProperties": False,
    }


def test_a_script_without_a_block_is_no_tool() -> None:
    assert tool_of("print(1)\n", "skill__a__b", timeout=1) is None
    assert tool_of("# /// script\n# dependencies = []\n# ///\n", "skill__a__b", timeout=1) is None


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ('description = "x"', "has no end"),
        ("# description = x\n# ///", "not valid TOML"),
        ("# timeout = 3\n# ///", "no description"),
        ('# description = "x"\n# effect = "read"\n# ///', "unknown fields effect"),
        ('# description = "x"\n# timeout = 9999\n# ///', "`timeout` is not a number of seconds up to 600"),
        ('# description = "x"\n# parameters = "text"\n# ///', "`parameters` are not tables"),
    ],
)
def test_a_wrong_block_says_what_to_mend(block: str, says: str) -> None:
    with pytest.raises(BrokenSkill, match=says):
        tool_of(f"# /// loom-tool\n{block}\n", "skill__a__b", timeout=1)


def test_a_name_that_providers_do_not_take_is_refused() -> None:
    with pytest.raises(BrokenSkill, match="longer than 64"):
        tool_of(BLOCK, "skill__" + "x" * 60, timeout=1)
