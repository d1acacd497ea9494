"""The Kubernetes manifests, by their own tools and schemas, without a cluster."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from loom._worker import GRACE
from tests.missing_programs import skip_or_fail
from tests.unit.house.deployed import DEPLOY, OWN_MEMORY, ROOT, Resource, size, variables

KUBERNETES: Final = DEPLOY / "kubernetes"
CUSTOM: Final = yaml.safe_load((ROOT / "tests/custom_resources.yaml").read_text(encoding="utf-8"))
KUBECTL: Final = shutil.which("kubectl", path=f"{os.environ['PATH']}:{ROOT / '.kubectl/bin'}")
VERSION: Final = "1.33"
"""The version of Kubernetes whose schemas the manifests follow, except `components/sandbox`."""
VERSION_OF_SANDBOX: Final = "1.35"
"""The oldest version in which the level `baseline` accepts an unmasked /proc in a pod with a user namespace."""
Overlay = tuple[str, ...]
BASE: Final = ("base",)
EXAMPLE: Final = ("example",)
API_KEY: Final = ("base", "temporal-cloud", "api-key")
CLOUD_MTLS: Final = ("base", "temporal-cloud", "mtls")
PRIVATE: Final = ("base", "mtls", "private-ca", "monitoring", "sandbox", "tracing")
OVERLAYS: Final[tuple[Overlay, ...]] = (BASE, EXAMPLE, API_KEY, CLOUD_MTLS, PRIVATE)
"""The folder that each begins with, and the components that it adds."""
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS, ids="+".join)


@cache
def kustomized(overlay: Overlay) -> tuple[Resource, ...]:
    """The resources that `kubectl apply --kustomize` would send."""
    if KUBECTL is None:
        skip_or_fail("kubectl is not installed: see .ci/kubectl")
    folder, *components = overlay
    with TemporaryDirectory() as made:
        there = os.path.relpath(KUBERNETES, Path(made).resolve())  # kustomize takes no absolute paths
        wanted = {
            "resources": [f"{there}/{folder}"],
            "components": [f"{there}/components/{each}" for each in components],
        }
        Path(made, "kustomization.yaml").write_text(yaml.safe_dump(wanted), encoding="utf-8")
        built = subprocess.run([KUBECTL, "kustomize", made], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    return tuple(yaml.safe_load_all(built.stdout))


def of_kind(overlay: Overlay, kind: str, name: str | None = None) -> Resource:
    (found,) = (r for r in kustomized(overlay) if r["kind"] == kind and name in (None, r["metadata"]["name"]))
    return found


def names(overlay: Overlay, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in kustomized(overlay) if each["kind"] == kind]


def settings_of(overlay: Overlay) -> dict[str, str]:
    """The ConfigMap from which the containers take their environment."""
    (name,) = (each for each in names(overlay, "ConfigMap") if each.startswith("loom-settings"))
    data: dict[str, str] = of_kind(overlay, "ConfigMap", name)["data"]
    return data


def pods(overlay: Overlay) -> tuple[Resource, Resource]:
    """The pods of the worker and of `loom serve`."""
    worker, serve = (of_kind(overlay, kind)["spec"]["template"]["spec"] for kind in ("WorkerDeployment", "Deployment"))
    return worker, serve


def environment_of(pod: Resource) -> dict[str, Any]:
    (container,) = pod["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


def scaler_of(overlay: Overlay) -> Resource:
    """The ScaledObject that the controller makes for each version."""
    scaler: Resource = of_kind(overlay, "WorkerResourceTemplate", "loom-worker-scaler")["spec"]["template"]["spec"]
    return scaler


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


def check_custom(kind: str, spec: Resource) -> None:
    """Raise ValidationError if the spec of a custom resource has a field or a value that its definition refuses."""
    Draft202012Validator({**CUSTOM[kind], "$defs": CUSTOM["$defs"]}).validate(spec)


def test_each_component_is_part_of_an_overlay_that_is_checked_here() -> None:
    components = {path.parent.name for path in (KUBERNETES / "components").glob("*/kustomization.yaml")}
    assert {each for _, *added in OVERLAYS for each in added} == components
    assert {path.parent.name for path in KUBERNETES.glob("*/kustomization.yaml")} == {"base", "example"}


@each_overlay
def test_each_resource_follows_the_schema_of_its_kind(overlay: Overlay) -> None:
    version = VERSION_OF_SANDBOX if "sandbox" in overlay else VERSION
    checked = set()
    for resource in (each for outer in kustomized(overlay) for each in inner(outer)):
        if resource["kind"] in CUSTOM:
            check_custom(resource["kind"], resource["spec"])
        else:
            kubernetes_validate.validate(resource, version, strict=True)
        checked.add(resource["kind"])
    assert checked >= {
        "WorkerDeployment",
        "Deployment",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }


def test_a_wrong_field_is_found() -> None:
    wrong = {**of_kind(BASE, "Service"), "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError, match="prots"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("Connection", {"tls": {"caCertSecretRef": {"name": "temporal-mtls"}}}),
        ("Connection", {"mutualTLSSecretRef": {"name": "a"}, "apiKeySecretRef": {"name": "b", "key": "key"}}),
        ("WorkerDeployment", {"sunset": {"scaleDownDelay": "15m"}}),
        ("WorkerDeployment", {"rollout": {"strategy": "Progressive"}}),
        ("ScaledObject", {"scaleTargetRef": {"name": "loom-worker"}}),
        ("ScaledObject", {"maxReplicas": 3}),
    ],
)
def test_a_wrong_field_of_a_custom_resource_is_found(kind: str, wrong: Resource) -> None:
    right = scaler_of(BASE) if kind == "ScaledObject" else of_kind(BASE, kind)["spec"]
    with pytest.raises(ValidationError):
        check_custom(kind, {**right, **wrong})


@pytest.mark.parametrize("field", ["namespace", "workerDeploymentName", "workerDeploymentBuildId"])
def test_what_the_controller_fills_in_is_left_empty(field: str) -> None:
    """The controller's webhook refuses other values in a trigger of the type `temporal`."""
    scaler = scaler_of(BASE)
    (trigger,) = scaler["triggers"]
    assert trigger["metadata"][field] == ""
    wrong = {**trigger, "metadata": {**trigger["metadata"], field: "default"}}
    with pytest.raises(ValidationError):
        check_custom("ScaledObject", {**scaler, "triggers": [wrong]})


@each_overlay
def test_each_resource_is_in_the_namespace(overlay: Overlay) -> None:
    namespace = of_kind(overlay, "Namespace")["metadata"]["name"]
    places = {r["metadata"].get("namespace") for r in kustomized(overlay) if r["kind"] != "Namespace"}
    assert places == {namespace}


@each_overlay
def test_containers_have_no_rights_that_they_do_not_need(overlay: Overlay) -> None:
    for pod in pods(overlay):
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


@each_overlay
def test_the_settings_exist_and_no_secret_is_among_them(overlay: Overlay) -> None:
    settings = settings_of(overlay)
    assert set(settings) <= variables()
    assert not any(re.search("KEY$|URL$|PASSWORD", name) for name in settings if name != "LOOM_SIGNING_KEY")
    assert "Secret" not in {each["kind"] for each in kustomized(overlay)}
    assert {name for pod in pods(overlay) for name in environment_of(pod)} <= variables()


def test_all_parts_use_the_same_server_namespace_and_task_queue() -> None:
    (trigger,) = scaler_of(BASE)["triggers"]
    worker, connection, settings = of_kind(BASE, "WorkerDeployment"), of_kind(BASE, "Connection"), settings_of(BASE)
    assert trigger["metadata"]["taskQueue"] == settings["LOOM_TASK_QUEUE"]
    assert trigger["metadata"]["endpoint"] == connection["spec"]["hostPort"] == settings["TEMPORAL_ADDRESS"]
    assert worker["spec"]["workerOptions"]["temporalNamespace"] == settings["TEMPORAL_NAMESPACE"]


def test_a_drained_version_is_deleted_before_the_autoscaler_scales_it_up_again() -> None:
    """KEDA restores `minReplicaCount` at its next poll. The controller scales down first, and deletes later."""
    assert scaler_of(BASE)["minReplicaCount"] > 0
    assert of_kind(BASE, "WorkerDeployment")["spec"]["sunset"]["deleteDelay"] == "0s"


def test_the_image_of_the_manifests_is_that_of_this_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (image,) = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert image["newTag"] == project["version"]


# Credentials for Temporal

MOUNTED: Final = "/etc/temporal/tls"
"""Where the controller mounts the Secret of `mutualTLSSecretRef`. It sets the variables of tls.crt and tls.key."""


def secret_parameters(overlay: Overlay) -> dict[str, str]:
    """The parameters that KEDA reads from the Secret, with its keys."""
    (trigger,) = scaler_of(overlay)["triggers"]
    authentication = of_kind(overlay, "TriggerAuthentication", trigger["authenticationRef"]["name"])
    return {each["parameter"]: each["key"] for each in authentication["spec"]["secretTargetRef"]}


@pytest.mark.parametrize("overlay", [PRIVATE, EXAMPLE], ids="+".join)
def test_with_a_private_authority_each_part_checks_the_server_with_it(overlay: Overlay) -> None:
    worker, serve = map(environment_of, pods(overlay))
    assert worker == {"TEMPORAL_TLS_SERVER_CA_CERT_PATH": f"{MOUNTED}/ca.crt"}
    assert serve == {
        "TEMPORAL_TLS_CLIENT_CERT_PATH": f"{MOUNTED}/tls.crt",
        "TEMPORAL_TLS_CLIENT_KEY_PATH": f"{MOUNTED}/tls.key",
        "TEMPORAL_TLS_SERVER_CA_CERT_PATH": f"{MOUNTED}/ca.crt",
    }
    assert secret_parameters(overlay) == {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}


def test_with_mtls_for_temporal_cloud_no_part_needs_an_authority() -> None:
    assert "ca.crt" not in yaml.safe_dump_all(kustomized(CLOUD_MTLS))
    assert secret_parameters(CLOUD_MTLS) == {"cert": "tls.crt", "key": "tls.key"}


@pytest.mark.parametrize("overlay", [PRIVATE, CLOUD_MTLS], ids="+".join)
def test_the_secret_of_the_connection_is_mounted_into_loom_serve(overlay: Overlay) -> None:
    _, serve = pods(overlay)
    (container,) = serve["containers"]
    (volume,) = (each["name"] for each in container["volumeMounts"] if each["mountPath"] == MOUNTED)
    (secret,) = (each["secret"]["secretName"] for each in serve["volumes"] if each["name"] == volume)
    assert of_kind(overlay, "Connection")["spec"]["mutualTLSSecretRef"] == {"name": secret}


def test_with_an_api_key_each_part_takes_it_from_the_secret_of_the_connection() -> None:
    secret = {"name": "temporal-api-key", "key": "key"}
    assert of_kind(API_KEY, "Connection")["spec"]["apiKeySecretRef"] == secret
    _, serve = pods(API_KEY)
    assert serve["containers"][0]["env"] == [{"name": "TEMPORAL_API_KEY", "valueFrom": {"secretKeyRef": secret}}]
    assert secret_parameters(API_KEY) == {"apiKey": "key"}


# Networks


def may_reach(overlay: Overlay, address: str, port: int) -> bool:
    """Whether a policy lets Loom's pods open connections to this address outside of the cluster."""
    rules = (rule for r in kustomized(overlay) if r["kind"] == "NetworkPolicy" for rule in r["spec"].get("egress", ()))
    there = ip_address(address)
    return any(
        there in ip_network(block["cidr"]) and not any(there in ip_network(each) for each in block["except"])
        for rule in rules
        if {"protocol": "TCP", "port": port} in rule["ports"]
        for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer)
    )


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1"])
def test_pods_reach_the_web_and_only_with_temporal_cloud_a_temporal_server_outside(address: str) -> None:
    for overlay in OVERLAYS:
        assert may_reach(overlay, address, 443)
        assert may_reach(overlay, address, 7233) is ("temporal-cloud" in overlay)


@pytest.mark.parametrize(
    "address", ["10.1.2.3", "100.64.1.1", "169.254.169.254", "192.168.1.1", "fd00:ec2::254", "fe80::1"]
)
def test_pods_do_not_reach_private_networks_and_metadata_services(address: str) -> None:
    assert not any(may_reach(overlay, address, port) for overlay in OVERLAYS for port in (443, 7233))


def test_pods_reach_the_collector_that_they_send_traces_to() -> None:
    collector = urlsplit(settings_of(PRIVATE)["OTEL_EXPORTER_OTLP_ENDPOINT"])
    (rule,) = of_kind(PRIVATE, "NetworkPolicy", "loom-to-the-collector")["spec"]["egress"]
    (peer,) = rule["to"]
    namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert collector.hostname == f"collector.{namespace}.svc.cluster.local"
    assert rule["ports"] == [{"protocol": "TCP", "port": collector.port}]


def test_the_ingress_controller_of_the_annotations_serves_the_ingress_and_may_reach_loom() -> None:
    ingress = of_kind(BASE, "Ingress")
    assert {name.split(".")[0] for name in ingress["metadata"]["annotations"]} == {ingress["spec"]["ingressClassName"]}
    (rule,) = of_kind(BASE, "NetworkPolicy", "ingress-to-serve")["spec"]["ingress"]
    assert rule["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ingress-nginx"}


# The sandbox


def test_the_sandbox_gets_what_pod_security_accepts_from_its_version_on() -> None:
    worker, serve = pods(PRIVATE)
    (container,) = worker["containers"]
    assert container["securityContext"]["procMount"] == "Unmasked"
    assert container["securityContext"]["seccompProfile"] == {"type": "Localhost", "localhostProfile": "loom.json"}
    assert worker["hostUsers"] is False
    assert of_kind(PRIVATE, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    assert serve.get("hostUsers") is None
    for file in ("README.md", "components/sandbox/kustomization.yaml"):
        versions = re.findall(r"Kubernetes (\d\.\d+) or later", (KUBERNETES / file).read_text(encoding="utf-8"))
        assert versions == [VERSION_OF_SANDBOX], file


@pytest.mark.parametrize("overlay", [BASE, EXAMPLE, CLOUD_MTLS], ids="+".join)
def test_whoever_does_not_add_the_sandbox_keeps_the_strictest_level(overlay: Overlay) -> None:
    assert of_kind(overlay, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert "Unmasked" not in yaml.safe_dump_all(kustomized(overlay))


def test_three_commands_of_agents_fit_into_the_memory_of_a_pod_beside_its_worker() -> None:
    limits = {overlay: pods(overlay)[0]["containers"][0]["resources"]["limits"] for overlay in (BASE, PRIVATE)}
    assert size(limits[BASE]["memory"]) == OWN_MEMORY
    command = int(settings_of(PRIVATE)["LOOM_SANDBOX_MEMORY"])
    assert size(limits[PRIVATE]["memory"]) == OWN_MEMORY + 3 * command


# Monitoring


def test_the_alerts_of_the_operator_are_those_of_the_rule_file() -> None:
    made = subprocess.run(
        [sys.executable, KUBERNETES / "prometheus_rule.py"], check=True, capture_output=True, text=True
    ).stdout
    resource = KUBERNETES / "components/monitoring/prometheus-rule.yaml"
    assert resource.read_text(encoding="utf-8") == made, "run `make prometheus-rule`"
    rules = yaml.safe_load((DEPLOY / "prometheus/loom.rules.yml").read_text(encoding="utf-8"))
    assert yaml.safe_load(made)["spec"] == rules
