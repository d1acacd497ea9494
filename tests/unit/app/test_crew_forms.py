"""Crews as files and as Python say them, and everything that can be wrong with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from loom import LoomApp
from loom.app.crew_files import crew_files, read_crews
from loom.app.forms.crew import CrewForm, complaints, read_crew
from loom.app.registry import merged
from loom.domain.core.errors import BadRequest
from loom.domain.crews.crew import Crew, CrewMode, Member, Route, Router

ROUTED = {
    "mode": "routed",
    "members": [{"name": "a", "capabilities": ["x"]}, {"name": "b", "substitute": "a", "on_failure": "skip"}],
    "router": {"rules": [{"match": "x", "member": "a"}], "fallback": "b"},
}
EXPECTED = Crew(
    name="desk",
    mode=CrewMode.ROUTED,
    members=(Member(name="a", capabilities=("x",)), Member(name="b", substitute="a", on_failure="skip")),
    router=Router(rules=(Route(match="x", member="a"),), fallback="b"),
    origin="here",
)
YAML = """\
mode: routed
members:
  - {name: a, capabilities: [x]}
  - {name: b, substitute: a, on_failure: skip}
router:
  rules:
    - {match: x, member: a}
  fallback: b
"""
TOML = """\
mode = "routed"
members = [{name = "a", capabilities = ["x"]}, {name = "b", substitute = "a", on_failure = "skip"}]
router = {rules = [{match = "x", member = "a"}], fallback = "b"}
"""


def test_a_crew_is_the_same_in_every_form(tmp_path: Path) -> None:
    for ending, content in (("yaml", YAML), ("toml", TOML), ("json", json.dumps(ROUTED))):
        folder = tmp_path / ending
        folder.mkdir()
        (folder / f"desk.{ending}").write_text(content)
        (read,) = read_crews(crew_files([folder]))
        assert read == read_crew(ROUTED, name="desk", origin=str(folder / f"desk.{ending}"))
    assert read_crew(ROUTED, name="desk", origin="here") == EXPECTED
    made = LoomApp().create_crew(
        "desk",
        mode="routed",
        members=({"name": "a", "capabilities": ("x",)}, {"name": "b", "substitute": "a", "on_failure": "skip"}),
        router={"rules": [{"match": "x", "member": "a"}], "fallback": "b"},
    )
    assert (made.members, made.router) == (EXPECTED.members, EXPECTED.router)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "mode is missing"),
        ({"mode": "paralel", "members": [{"name": "a"}]}, "mode 'paralel' must be one of sequential, parallel"),
        ({"mode": "parallel", "members": []}, "members"),
        ({"mode": "parallel", "members": [{"nam": "a"}]}, "there is no field members.0.nam: did you mean name?"),
        ({"mode": "parallel", "members": [{"name": "a"}, {"name": "a"}]}, "two members are called 'a'"),
        ({"mode": "parallel", "members": [{"name": "a", "retries": -1}]}, "members.0.retries -1 must be at least 0"),
        ({"mode": "parallel", "members": [{"name": "a", "model": "gpt"}]}, "is not a model: use openai:NAME"),
        ({**ROUTED, "router": {"by": "chance"}}, "router.by 'chance' must be one of rules, embedding or model"),
        ({**ROUTED, "router": {"rules": [{"match": "(", "member": "a"}]}}, "is not a regular expression"),
        ({"mode": "tree", "members": [{"name": "a"}]}, "a tree has 2 to 10 members, not 1"),
        ({"mode": "tree", "members": [{"name": "a"}], "judge": {"rounds": 6}}, "judge.rounds 6 must be at most 5"),
        ({**ROUTED, "coordinator": {"rounds": 1}}, "no field coordinator.rounds: did you mean max_rounds?"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(given: dict[str, Any], says: str) -> None:
    problems = list(complaints(given, where="desk.yaml"))
    assert any(says in problem for problem in problems), problems
    assert all(problem.startswith("desk.yaml: ") for problem in problems)


def test_every_field_of_the_schema_is_described() -> None:
    schema = CrewForm.model_json_schema()
    objects = [schema, *schema["$defs"].values()]
    assert all("description" in field for each in objects for field in each.get("properties", {}).values())


def test_names_are_unique_among_apps_and_files() -> None:
    one, other = LoomApp(), LoomApp()
    for app in (one, other):
        app.create_crew("team", mode="parallel", members=[{"name": "a"}])
    with pytest.raises(BadRequest, match="two crews are called 'team'"):
        one.create_crew("team", mode="parallel", members=[{"name": "a"}])
    with pytest.raises(BadRequest, match="both apps have a crew 'team'"):
        one.include(other)
    with pytest.raises(BadRequest, match="two crews are called 'team'"):
        merged({"one": one, "other": other}, built_in={})
    assert list(merged({"one": one}, built_in={}).crews) == ["team"]
    assert one.get_crew("team").members == (Member(name="a"),)
