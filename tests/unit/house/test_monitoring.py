"""The dashboard, the alert rules and the documentation name metrics that exist, and promtool accepts them."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from bench.metrics_table import DOC, MARKS, generated
from loom.domain.core import metrics
from tests.missing_programs import skip_or_fail

ROOT: Final = Path(__file__).parents[3]
RULES: Final = ROOT / "deploy" / "prometheus" / "loom.rules.yml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "loom.json"
PROMTOOL: Final = shutil.which("promtool", path=f"{ROOT / '.promtool/usr/bin'}:/usr/local/bin:/usr/bin")
SERIES: Final = {
    f"{each.name}{ending}": each.labels
    for each in metrics.ALL
    for ending in (("_bucket", "_sum", "_count") if each.kind == "histogram" else ("",))
}
"""What Prometheus stores of each metric, with its labels."""
SDK: Final = {
    "temporal_workflow_task_schedule_to_start_latency_bucket",
    "temporal_activity_schedule_to_start_latency_bucket",
    "temporal_worker_task_slots_available",
}
"""The SDK's series that are used here. `test_metrics.py` looks for them at a real worker."""


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return found


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


EXPRESSIONS: Final = [*dashboard_expressions(), *(rule["expr"] for rule in rules())]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_series_in_the_dashboard_and_the_rules_exists_with_its_labels(expression: str) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    named = set(re.findall(r"\b(?:loom|temporal)[_:][\w:]+", expression))
    assert named
    assert named <= SERIES.keys() | SDK | recorded
    labels = {name for each in named for name in SERIES.get(each, ())} | {"le", "instance", "worker_type"}
    for name in named & recorded:
        labels |= set(re.findall(r"by \((.*?)\)", next(r["expr"] for r in rules() if r.get("record") == name)))
    used = re.findall(r"by \(([^)]*)\)", expression) + re.findall(r"(\w+)[!=]~?\"", expression)
    assert {label.strip() for each in used for label in each.split(",")} <= labels


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(EXPRESSIONS)
    assert [each.name for each in metrics.ALL if each.name not in shown] == []


def test_the_panels_of_the_dashboard_fill_a_grid_without_overlaps() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_the_documentation_lists_every_metric() -> None:
    shown = DOC.read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert shown.strip() == generated(), "run `python -m bench.metrics_table`"


def test_the_list_of_metrics_is_complete() -> None:
    assert [each for each in vars(metrics).values() if isinstance(each, metrics.Metric)] == list(metrics.ALL)


def test_no_label_holds_an_id() -> None:
    assert not {label for each in metrics.ALL for label in each.labels} & {"run_id", "session_id", "user_id", "tenant"}
    assert metrics.tool_label("invented_by_a_model", frozenset({"bash"})) == "unknown"
    assert metrics.tool_label("made__sum", frozenset({"made__sum"})) == "made"


def test_promtool_accepts_the_configuration_and_the_rules_do_what_their_tests_say(tmp_path: Path) -> None:
    shown = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(dashboard_expressions())]
    queries = tmp_path / "dashboard.yml"
    queries.write_text(
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": shown}]}).replace("$__rate_interval", "5m")
    )

    promtool("check", "config", RULES.with_name("prometheus.yml"))
    promtool("check", "config", "--syntax-only", RULES.with_name("compose.yml"))  # its token is in a volume
    promtool("check", "rules", queries)
    promtool("test", "rules", RULES.with_name("loom.rules.test.yml"))


def promtool(*words: object) -> None:
    if PROMTOOL is None:
        skip_or_fail("promtool is not installed: see .ci/promtool")
    done = subprocess.run([PROMTOOL, *map(str, words)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
