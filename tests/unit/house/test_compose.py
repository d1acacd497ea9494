"""The image and the compose file, by their own tools and schemas, without an engine."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from compose_spec import PyCompose, PyOptions
from dotenv import dotenv_values

from tests.unit.house.deployed import DEPLOY, OWN_MEMORY, Resource, size, variables


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


def is_job(service: Resource) -> bool:
    """Whether it ends, and isn't tried without end."""
    return service.get("deploy") == {"restart_policy": {"condition": "on-failure", "max_attempts": 10}}


def test_the_compose_file_follows_the_specification_and_names_only_what_it_defines() -> None:
    assert set(compose()["services"]) >= {"worker", "serve", "temporal", "postgres", "redis", "prometheus", "grafana"}
    with pytest.raises(Exception, match="healthchck"):
        PyCompose.from_yaml("services: {a: {image: x, healthchck: {}}}")


def test_whatever_a_service_waits_for_can_become_so() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            has_check = "healthcheck" in services[other] or other == "worker"  # the image's own
            can = {"service_healthy": has_check, "service_completed_successfully": is_job(services[other])}
            assert can[wait["condition"]], (name, other)


def test_no_password_has_a_default_and_each_variable_is_in_the_example() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    example = dotenv_values(DEPLOY / ".env.example")
    passwords = {name for name in example if name.endswith("PASSWORD")}
    assert len(passwords) == 5
    assert {example[name] for name in passwords} == {""}
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    assert used - set(example) == {"TEMPORAL_VERSION", "TEMPORAL_UI_VERSION"}
    first = {name: re.findall(rf"(?<!\$)\$\{{{name}([^}}]*)\}}", text) for name in passwords}
    assert all(any(rest.startswith(":?") for rest in uses) for uses in first.values()), first


def test_loom_and_temporal_use_postgres_with_roles_of_their_own() -> None:
    services = compose()["services"]
    assert {name for name, service in services.items() if "${POSTGRES_PASSWORD" in str(service)} == {"postgres"}
    users = {
        urlsplit(interpolated(services[name]["environment"]["LOOM_DATABASE_URL"])).username
        for name in ("worker", "serve")
    }
    assert users == {"loom"}
    assert services["temporal"]["environment"]["POSTGRES_USER"] == "temporal"
    assert services["schema"]["environment"]["SQL_USER"] == "temporal"
    roles = (DEPLOY / "postgres/roles.sh").read_text(encoding="utf-8")
    read = set(re.findall(r"\\getenv \w+ (\w+)", roles))
    assert read == {"LOOM_PASSWORD", "TEMPORAL_PASSWORD"} <= set(services["postgres"]["environment"])


def test_postgres_is_healthy_only_when_its_roles_exist() -> None:
    """While the image runs its scripts, the server listens at a socket only."""
    (check,) = (service["healthcheck"]["test"] for name, service in compose()["services"].items() if name == "postgres")
    assert check[check.index("--host") + 1] == "127.0.0.1"


def test_no_command_line_contains_a_password() -> None:
    for name, service in compose()["services"].items():
        lines = (service.get("command"), service.get("entrypoint"), service.get("healthcheck"))
        assert "PASSWORD" not in str(lines), name


def test_no_service_takes_all_memory_or_disk_or_gains_privileges() -> None:
    for name, service in compose()["services"].items():
        assert "mem_limit" in service, name
        assert "max-size" in service["logging"]["options"], name
        assert "no-new-privileges:true" in service["security_opt"], name


def test_loom_takes_its_settings_from_a_file_of_yours() -> None:
    services = compose()["services"]
    for name in ("worker", "serve"):
        example = DEPLOY / f"{services[name]['env_file']}.example"
        named = set(re.findall(r"^#?([A-Z_]+)=", example.read_text(encoding="utf-8"), re.MULTILINE))
        assert {"LOOM_MODEL", "LOOM_APP", "OPENAI_API_KEY", "OPENAI_BASE_URL"} <= named <= variables()
        assert set(services[name]["environment"]) <= variables()
        assert not named & set(services[name]["environment"])


def test_three_commands_of_agents_fit_into_the_memory_of_the_worker_beside_it() -> None:
    command = int(dotenv_values(DEPLOY / "loom.env.example")["LOOM_SANDBOX_MEMORY"] or 0)
    assert size(compose()["services"]["worker"]["mem_limit"]) == OWN_MEMORY + 3 * command


def test_the_readme_states_the_memory_limits_of_the_services_that_keep_running() -> None:
    services = compose()["services"].values()
    limits = [size(each["mem_limit"]) for each in services if not is_job(each)]
    text = " ".join((DEPLOY / "README.md").read_text(encoding="utf-8").split())
    worker = size(compose()["services"]["worker"]["mem_limit"])
    assert f"{sum(limits) / 1024**3:g} GiB, and each further worker adds {worker / 1024**3:g} GiB" in text


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
