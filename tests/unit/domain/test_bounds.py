"""What a worker serves: workspaces in its roots, and modes up to its widest one."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.judge import Mode

NAMES = st.sampled_from(["a", "b", "ab", "a b", ".a"])
PATHS = st.lists(NAMES, max_size=4).map(lambda names: PurePosixPath("/", *names))


def serves_workspace(bounds: Bounds, workspace: PurePosixPath) -> bool:
    try:
        bounds.refuse_workspace(str(workspace))
    except BadRequest:
        return False
    return True


def serves_mode(bounds: Bounds, mode: Mode) -> bool:
    try:
        bounds.refuse_mode(mode)
    except BadRequest:
        return False
    return True


@given(st.lists(PATHS, min_size=1, max_size=3), PATHS)
def test_a_workspace_is_a_root_or_below_one(roots: list[PurePosixPath], workspace: PurePosixPath) -> None:
    within = any(root == workspace or root in workspace.parents for root in roots)
    assert serves_workspace(Bounds(roots=tuple(map(str, roots))), workspace) is within


@given(PATHS, NAMES, NAMES)
def test_a_name_that_only_begins_like_a_root_is_outside(parent: PurePosixPath, name: str, further: str) -> None:
    assert not serves_workspace(Bounds(roots=(str(parent / name),)), parent / (name + further))


@pytest.mark.parametrize("widest", list(Mode))
def test_modes_up_to_the_widest_are_served(widest: Mode) -> None:
    order = [Mode.READ_ONLY, Mode.DEFAULT, Mode.ACCEPT_EDITS, Mode.BYPASS]
    assert [mode for mode in order if serves_mode(Bounds(max_mode=widest), mode)] == order[: order.index(widest) + 1]


@pytest.mark.parametrize("parent", list(Mode))
@pytest.mark.parametrize("widest", list(Mode))
def test_a_mode_that_no_request_names_is_within_the_bounds_or_its_parents(widest: Mode, parent: Mode) -> None:
    order = [Mode.READ_ONLY, Mode.DEFAULT, Mode.ACCEPT_EDITS, Mode.BYPASS]
    limit = max(order.index(widest), order.index(parent))
    for mode in order[: limit + 1]:
        Bounds(max_mode=widest).refuse_unrequested_mode(mode, of_parent=parent)
    for mode in order[limit + 1 :]:
        with pytest.raises(BadRequest, match="LOOM_MAX_MODE"):
            Bounds(max_mode=widest).refuse_unrequested_mode(mode, of_parent=parent)


def test_a_refusal_names_the_setting_and_what_was_asked_for() -> None:
    with pytest.raises(BadRequest, match=r"'/b c' .* \(/a\): .* LOOM_WORKSPACES") as outside:
        Bounds(roots=("/a",)).refuse_workspace("/b c")
    with pytest.raises(BadRequest, match=r"'bypass' .* \(default\): .* LOOM_MAX_MODE=bypass") as wider:
        Bounds(max_mode=Mode.DEFAULT).refuse_mode(Mode.BYPASS)
    assert (outside.value.context["field"], wider.value.context["field"]) == ("workspace", "mode")


def test_bounds_that_nobody_set_serve_everything() -> None:
    assert serves_workspace(Bounds(), PurePosixPath("/"))
    assert serves_mode(Bounds(), Mode.BYPASS)
