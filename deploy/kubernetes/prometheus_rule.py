"""Print the alert rules of `deploy/prometheus/loom.rules.yml` as a resource for the Prometheus Operator.

`make prometheus-rule` writes the resource, and a test checks that it is up to date.
"""

from pathlib import Path

RULES = Path(__file__).parents[1] / "prometheus" / "loom.rules.yml"
HEAD = """\
# Made of ../../../prometheus/loom.rules.yml by `make prometheus-rule`: change the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: loom
spec:
"""


def resource() -> str:
    """Return the resource as YAML. The rules are indented, otherwise unchanged."""
    rules = RULES.read_text(encoding="utf-8")
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in rules[rules.index("groups:") :].splitlines())


if __name__ == "__main__":
    print(resource(), end="")  # noqa: T201 - its purpose
