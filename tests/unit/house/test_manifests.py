"""The image, the compose file and the Kubernetes manifests, by their own tools and schemas, without an engine."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose, PyOptions
from jsonschema import Draft202012Validator

from loom._worker import GRACE
from loom.composition.settings import Settings
from tests.missing_programs import skip_or_fail

ROOT: Final = Path(__file__).parents[3]
DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"
CUSTOM: Final = yaml.safe_load((ROOT / "tests/custom_resources.yaml").read_text(encoding="utf-8"))
VERSION: Final = "1.33"
"""The oldest Kubernetes that has all fields, those of pods with a user namespace included."""
Resource = dict[str, Any]


def variables() -> set[str]:
    """The names of all settings in the environment."""
    found: set[str] = set()
    for name, setting in Settings.model_fields.items():
        choices = getattr(setting.validation_alias, "choices", None) or (f"LOOM_{name.upper()}",)
        found |= {str(each) for each in choices}
    return found


def test_hadolint_accepts_the_dockerfile() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([linter, DEPLOY / "Dockerfile"], check=False, capture_output=True, text=True)
    assert linted.stdout == ""
    assert linted.returncode == 0, linted.stderr


def test_the_image_runs_as_nobody_in_particular_and_names_its_volumes() -> None:
    final = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in final
    named = dict(re.findall(r"(LOOM_(?:HOME|WORKSPACE))=(\S+)", final))
    volumes = re.search(r"^VOLUME (\[.*\])$", final, re.MULTILINE)
    assert volumes is not None
    assert sorted(json.loads(volumes[1])) == sorted(named.values())


# compose.yaml


def interpolated(text: str) -> str:
    """The file as Compose reads it: with a value for each variable that has no default."""
    return re.sub(r"(?<!\$)\$\{\w+(?::-([^}]*)|:\?[^}]*)?\}", lambda found: found[1] or "given", text)


@cache
def compose() -> Resource:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    options = PyOptions()
    options.apply_merge = True
    options.from_yaml(interpolated(text)).validate()
    return dict(yaml.safe_load(text))


def test_the_compose_file_follows_the_specification_and_names_only_what_it_defines() -> None:
    assert set(compose()["services"]) >= {"worker", "serve", "temporal", "postgres", "redis", "prometheus", "grafana"}
    with pytest.raises(Exception, match="healthchck"):
        PyCompose.from_yaml("services: {a: {image: x, healthchck: {}}}")


def test_whatever_a_service_waits_for_can_become_so() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            has_check = "healthcheck" in services[other] or other == "worker"  # the image's own
            is_job = services[other].get("restart", "no") == "no"
            wanted = wait["condition"]
            assert {"service_healthy": has_check, "service_completed_successfully": is_job}[wanted], (name, other)


def test_no_password_has_a_default_and_each_variable_is_in_the_example() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    example = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert {name for name, value in example.items() if name.endswith(("PASSWORD", "KEY")) and value} == set()
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    assert used - set(example) == {"TEMPORAL_VERSION", "TEMPORAL_UI_VERSION"}
    first = {name: re.findall(rf"(?<!\$)\$\{{{name}([^}}]*)\}}", text) for name in example if name.endswith("PASSWORD")}
    assert all(any(rest.startswith(":?") for rest in uses) for uses in first.values()), first


def test_ports_are_published_on_this_machine_only_and_mounted_files_exist() -> None:
    for name, service in compose()["services"].items():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ())), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose()["volumes"], volume


def test_prometheus_gets_a_token_for_the_http_service_once(url: str, tmp_path: Path) -> None:
    *_, script = compose()["services"]["metrics-token"]["entrypoint"]
    config = yaml.safe_load((DEPLOY / "prometheus/compose.yml").read_text(encoding="utf-8"))
    (job,) = (job for job in config["scrape_configs"] if job["job_name"] == "loom-serve")
    token = tmp_path / Path(job["authorization"]["credentials_file"]).name
    environment = {
        "LOOM_DATABASE_URL": url,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
    }

    def run(*words: str) -> str:
        return subprocess.run(words, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    for _ in range(2):
        run("sh", "-ec", script.replace("/var/lib/loom/state", str(tmp_path)))
    assert re.fullmatch(r"loom_[\w-]{43}\n", token.read_text())
    assert [
        (each["name"], each["role"], each["tenant"]) for each in json.loads(run("loom", "tokens", "list", "--json"))
    ] == [("prometheus", "viewer", None)]


def test_prometheus_finds_the_services_of_the_compose_file() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/compose.yml").read_text(encoding="utf-8"))
    named = {found["names"][0] for job in config["scrape_configs"] for found in job["dns_sd_configs"]}
    assert named <= set(compose()["services"])


# Kubernetes


@cache
def kustomized(folder: str) -> tuple[Resource, ...]:
    program = shutil.which("kubectl")
    if program is None:
        skip_or_fail("kubectl is not installed: it builds the manifests")
    built = subprocess.run([program, "kustomize", KUBERNETES / folder], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    return tuple(yaml.safe_load_all(built.stdout))


def of_kind(folder: str, kind: str, name: str | None = None) -> Resource:
    (found,) = (r for r in kustomized(folder) if r["kind"] == kind and name in (None, r["metadata"]["name"]))
    return found


def inner(resource: Resource) -> Iterator[Resource]:
    """A resource, and those that the controller makes of it."""
    spec = resource.get("spec", {})
    yield resource
    match resource["kind"]:
        case "WorkerDeployment":
            deployment = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": spec["template"]}
            yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": deployment}
        case "WorkerResourceTemplate":
            yield from inner({"metadata": {"name": "x"}, **spec["template"]})
        case "ScaledObject":
            own = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
            target = {"scaleTargetRef": {"kind": "Deployment", "name": "x"}, "maxReplicas": spec["maxReplicaCount"]}
            kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"}}
            yield {**kind, "spec": {**target, **own}}


@pytest.mark.parametrize("folder", ["base", "example"])
def test_each_resource_follows_the_schema_of_its_kind(folder: str) -> None:
    checked = set()
    for resource in (each for outer in kustomized(folder) for each in inner(outer)):
        if (schema := CUSTOM.get(resource["kind"])) is not None:
            Draft202012Validator({**schema, "$defs": CUSTOM["$defs"]}).validate(resource["spec"])
        else:
            kubernetes_validate.validate(resource, VERSION, strict=True)
        checked.add(resource["kind"])
    assert checked >= {
        "WorkerDeployment",
        "Deployment",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }


def test_a_wrong_field_is_found() -> None:
    wrong = {**of_kind("base", "Service"), "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError, match="prots"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def pods(folder: str) -> list[Resource]:
    owners = (of_kind(folder, "WorkerDeployment"), of_kind(folder, "Deployment"))
    return [owner["spec"]["template"]["spec"] for owner in owners]


@pytest.mark.parametrize("folder", ["base", "example"])
def test_containers_have_no_rights_that_they_do_not_need(folder: str) -> None:
    for pod in pods(folder):
        (container,) = pod["containers"]
        confined = container["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert confined["readOnlyRootFilesystem"]
        assert not confined["allowPrivilegeEscalation"]
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= set(container["resources"])
        assert {"livenessProbe", "startupProbe"} <= set(container)
        assert pod["terminationGracePeriodSeconds"] >= 2 * GRACE.total_seconds()


@pytest.mark.parametrize("folder", ["base", "example"])
def test_the_settings_exist_and_no_secret_is_among_them(folder: str) -> None:
    settings = of_kind(
        folder, "ConfigMap", next(n for n in names(folder, "ConfigMap") if n.startswith("loom-settings"))
    )
    assert set(settings["data"]) <= variables()
    assert not any(re.search("KEY$|URL$|PASSWORD", name) for name in settings["data"] if name != "LOOM_SIGNING_KEY")
    assert "Secret" not in {each["kind"] for each in kustomized(folder)}
    environment = {each["name"] for pod in pods(folder) for each in pod["containers"][0].get("env", ())}
    assert environment <= variables()


def names(folder: str, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in kustomized(folder) if each["kind"] == kind]


def test_the_autoscaler_asks_about_the_workers_own_queue_and_deployment() -> None:
    trigger = of_kind("base", "WorkerResourceTemplate", "loom-worker-scaler")["spec"]["template"]["spec"]["triggers"][0]
    worker, connection = of_kind("base", "WorkerDeployment"), of_kind("base", "Connection")
    settings = of_kind("base", "ConfigMap")["data"]
    asked, options = trigger["metadata"], worker["spec"]["workerOptions"]
    assert asked["taskQueue"] == settings["LOOM_TASK_QUEUE"]
    assert asked["endpoint"] == connection["spec"]["hostPort"] == settings["TEMPORAL_ADDRESS"]
    assert asked["namespace"] == options["temporalNamespace"] == settings["TEMPORAL_NAMESPACE"]
    # The controller's name for a deployment: the namespace of Kubernetes, and the resource's name.
    assert asked["workerDeploymentName"] == f"{worker['metadata']['namespace']}/{worker['metadata']['name']}"


def test_the_alerts_of_the_operator_are_those_of_the_rule_file() -> None:
    made = subprocess.run(
        [sys.executable, KUBERNETES / "prometheus_rule.py"], check=True, capture_output=True, text=True
    ).stdout
    resource = KUBERNETES / "components/monitoring/prometheus-rule.yaml"
    assert resource.read_text(encoding="utf-8") == made, "run `make prometheus-rule`"
    rules = yaml.safe_load((DEPLOY / "prometheus/loom.rules.yml").read_text(encoding="utf-8"))
    assert yaml.safe_load(made)["spec"] == rules
