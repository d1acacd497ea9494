"""What `deploy/` says of a worker is true of this code."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from dotenv import dotenv_values
from pydantic import AliasChoices

from loom.composition.load_settings import read_settings
from loom.composition.settings import Settings
from tests.docs_pages import ROOT, blocks
from tests.missing_programs import skip_or_fail
from tests.unit.house.test_compose import compose
from tests.unit.house.test_kubernetes import EXAMPLE as OVERLAY
from tests.unit.house.test_kubernetes import KUBECTL, of_kind

DEPLOY: Final = ROOT / "deploy"
EXAMPLE: Final = DEPLOY / "worker.env.example"


def _variables() -> set[str]:
    found: set[str] = set()
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        found |= {str(each) for each in alias.choices} if isinstance(alias, AliasChoices) else {f"LOOM_{name.upper()}"}
    return found


def test_each_variable_of_the_example_is_a_setting() -> None:
    named = set(re.findall(r"^#?([A-Z_]+)=", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(named) > 20
    assert named <= _variables()


def test_the_example_is_an_environment_that_a_worker_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {name: value for name, value in dotenv_values(EXAMPLE).items() if value}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = read_settings()
    assert settings.temporal_address == values["TEMPORAL_ADDRESS"]
    assert settings.redis_url == values["LOOM_REDIS_URL"]


def test_the_unit_keeps_what_the_example_names_writable() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read(DEPLOY / "loom-worker.service", encoding="utf-8")
    service = unit["Service"]
    folders = {f"/var/lib/{name}" for name in service["StateDirectory"].split()}
    values = dotenv_values(EXAMPLE)
    assert {values["LOOM_HOME"], values["LOOM_WORKSPACE"]} <= folders
    assert service["ExecStart"].endswith("/bin/loom worker")
    assert service["RestartPreventExitStatus"] == "2"


# What the pages tell people to type, as far as it can be checked without an engine, a cluster or root.

MACHINE: Final = "deploy/README.md"
CLUSTER: Final = "deploy/kubernetes/README.md"


def commands_of(page: str) -> str:
    """The commands of a page, one a line, without comments."""
    text = "".join(block.text for block in blocks("console") if block.page == page)
    return re.sub(r"\s+#.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)


@pytest.mark.parametrize("page", [MACHINE, CLUSTER])
def test_the_commands_of_a_page_are_a_script(page: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=commands_of(page), check=False, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    programs = {line.split()[0] for line in commands_of(page).splitlines()}
    of_machine = {
        "docker",
        "cd",
        "cp",
        "useradd",
        "python3",
        "/opt/loom/bin/pip",
        "install",
        "systemctl",
        "systemd-run",
    }
    assert programs == (of_machine if page == MACHINE else {"cp", "kubectl", "token=$(kubectl", "loom"})


def test_the_commands_for_one_machine_name_files_services_and_paths_that_exist() -> None:
    text = commands_of(MACHINE)
    sources = [
        *re.findall(r"--file (\S+)", text),
        *re.findall(r"-r (\S+)", text),
        *re.findall(r"^install -m \d+ .*?(\S+) \S+$", text, re.MULTILINE),
        *(f"deploy/{name}" for name in re.findall(r"^cp (\S+)", text, re.MULTILINE)),
    ]
    assert sorted(sources) == [
        "deploy/.env.example",
        "deploy/Dockerfile",
        "deploy/loom-worker.service",
        "deploy/loom.env.example",
        "deploy/requirements.lock",
        "deploy/worker.env.example",
    ]
    assert all((ROOT / name).is_file() for name in sources)
    assert set(re.findall(r"docker compose run --rm (\S+)", text)) <= set(compose()["services"])

    unit = configparser.RawConfigParser(strict=False)
    unit.read(DEPLOY / "loom-worker.service", encoding="utf-8")
    service = unit["Service"]
    assert re.findall(r"useradd .*--home-dir (\S+) .* (\S+)$", text, re.MULTILINE) == [
        (service["WorkingDirectory"], service["User"])
    ]
    assert set(re.findall(r"EnvironmentFile=(\S+)|(/etc/loom/\S+)$", text, re.MULTILINE)) == {
        (service["EnvironmentFile"], ""),
        ("", service["EnvironmentFile"]),
    }
    assert set(re.findall(r"(/opt/\S+)/bin/(?:pip|loom)", text)) == {service["ExecStart"].partition("/bin/")[0]}
    assert set(re.findall(r"systemctl enable --now (\S+)", text)) == {"loom-worker"}


def test_the_overlay_that_the_page_begins_with_can_be_built(tmp_path: Path) -> None:
    if KUBECTL is None:
        skip_or_fail("kubectl is not installed: see .ci/kubectl")
    copy = shutil.copytree(DEPLOY, tmp_path / "deploy") / "kubernetes"
    copying, inspecting, applying = commands_of(CLUSTER).splitlines()[:3]
    subprocess.run(shlex.split(copying), cwd=copy, check=True)
    built = subprocess.run(
        [KUBECTL, *shlex.split(inspecting)[1:]], cwd=copy, check=True, capture_output=True, text=True
    ).stdout
    assert "kind: WorkerDeployment" in built
    assert applying.split()[-1] == inspecting.split()[-1]


def test_the_commands_for_a_cluster_name_what_the_manifests_name() -> None:
    text = commands_of(CLUSTER)
    manifests = "\n".join(file.read_text(encoding="utf-8") for file in (DEPLOY / "kubernetes").rglob("*.yaml"))
    namespace = of_kind(OVERLAY, "Namespace")["metadata"]["name"]
    assert set(re.findall(r"(?:--namespace|create namespace) (\S+)", text)) == {namespace}
    secrets = re.findall(r"create secret generic (\S+)", text)
    assert len(secrets) == 4
    assert [name for name in secrets if not re.search(rf"(?:secretName|name): {name}\b", manifests)] == []
    for kind, name in (("WorkerDeployment", r"workerdeployment (\S+)"), ("Deployment", r"exec deployment/(\S+)")):
        (named,) = re.findall(name, text)
        assert of_kind(OVERLAY, kind)["metadata"]["name"] == named
