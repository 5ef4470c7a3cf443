"""The image, compose and the pools, as far as they can be tested without an engine: locks, schemas, what the
workers' own models make of the templates, and the image's steps under its user with nothing to write to but
/data."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[3]
DEPLOYMENTS = CHECKOUT / "deployments"
COMPOSE = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())
RUN_ID = "0199c0de-0000-7000-8000-000000000001"


def instructions() -> list[tuple[str, str]]:
    """The Containerfile's instructions with their arguments, lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOYMENTS / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def copied() -> list[tuple[str, str]]:
    """Source and target of everything that the image copies."""
    found = []
    for name, arguments in instructions():
        if name == "COPY":
            *sources, target = arguments.split()
            found += [
                (source, target if len(sources) == 1 and target != "./" else source) for source in sources
            ]
    return found


def environment() -> dict[str, str]:
    """The environment that the image sets."""
    pairs = [arguments for name, arguments in instructions() if name == "ENV"]
    return dict(entry.split("=", 1) for line in pairs for entry in shlex.split(line))


def locked(name: str) -> dict[str, str]:
    """Package → version of a lock."""
    lines = (CHECKOUT / name).read_text().splitlines()
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", "\n".join(lines), re.MULTILINE))


def test_the_images_lock_is_the_base_with_what_containers_need() -> None:
    text = (CHECKOUT / "requirements-containers.lock").read_text()
    found, base = locked("requirements-containers.lock"), locked("requirements.lock")
    assert {name: found.get(name) for name in base} == base
    assert {"s3fs", "distributed", "prefect-docker", "prefect-kubernetes", "asyncpg"} <= set(found)
    packages = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert [entry.split()[0] for entry in packages if "--hash=sha256:" not in entry] == []
    assert "index-url" not in text.replace("--no-emit-index-url", "")
    assert any(
        "requirements-containers.lock" in arguments for name, arguments in instructions() if name == "RUN"
    )


def test_what_the_image_copies_is_there_and_is_all_of_the_product() -> None:
    sources = {source for source, _ in copied()}
    assert [source for source in sources if not (CHECKOUT / source).exists()] == []
    assert {
        "flows",
        "tasks",
        "scorers",
        "metrics",
        "deployments",
        "prefect.yaml",
        "pyproject.toml",
    } <= sources


def test_the_images_user_is_a_number_and_owns_no_file_of_the_application() -> None:
    users = [arguments for name, arguments in instructions() if name == "USER"]
    assert len(users) == 1
    assert users[0].isdigit()
    assert int(users[0]) > 0
    runs = " ".join(arguments for name, arguments in instructions() if name == "RUN")
    assert re.findall(r"chown \S+ (\S+)", runs) == ["/data"]
    for name in ("NIGHTJAR_HOME", "NIGHTJAR_RESULTS", "PREFECT_HOME", "HOME"):
        assert environment()[name].startswith("/data")


@pytest.mark.parametrize("file", ["compose.yaml"])
def test_compose_holds_to_its_schema(file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file],
        cwd=DEPLOYMENTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_names_one_image_with_a_tag_and_gives_every_writer_a_volume() -> None:
    services = COMPOSE["services"]
    ours = {name: service for name, service in services.items() if "build" in service}
    assert {service["image"] for service in ours.values()} == {"nightjar:0.1.0"}
    assert all(service["read_only"] for service in ours.values())
    for name, service in ours.items():
        assert [volume for volume in service["volumes"] if volume.endswith(":/data")], name
    named = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert named == set(COMPOSE["volumes"])
    server = services["server"]["environment"]
    assert server["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"].endswith("filesystem")


async def configured(kind: type[Any], template: str, values: Mapping[str, Any] | None = None) -> Any:
    """What a worker makes of a pool's template for a flow run."""
    from prefect.client.schemas.objects import FlowRun

    document = json.loads((DEPLOYMENTS / template).read_text())
    # No block is in the templates: a client that is asked for one would be an error.
    made = await kind.from_template_and_values(document, dict(values or {}), client=object())
    made.prepare_for_flow_run(FlowRun(id=RUN_ID, name="night", flow_id=uuid4()))
    return made


async def test_the_docker_pool_uses_the_image_that_was_built_here() -> None:
    from prefect_docker.worker import DockerWorkerJobConfiguration, ImagePullPolicy

    made = await configured(DockerWorkerJobConfiguration, "docker-pool.json")
    assert made.image == COMPOSE["services"]["worker"]["image"]
    assert made._determine_image_pull_policy() is ImagePullPolicy.IF_NOT_PRESENT
    latest = await configured(DockerWorkerJobConfiguration, "docker-pool.json", {"image": "nightjar"})
    assert latest._determine_image_pull_policy() is ImagePullPolicy.IF_NOT_PRESENT
    assert made.volumes == ["nightjar_data:/data"]
    project = COMPOSE["name"]
    assert made.volumes[0].split(":")[0] == f"{project}_data"
    assert made.networks == [f"{project}_default"]
    assert made.labels["io.prefect.flow-run-id"] == RUN_ID


async def test_the_kubernetes_pool_makes_a_job_without_a_key_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    made = await configured(KubernetesWorkerJobConfiguration, "kubernetes-pool.json")
    job = made.job_manifest
    assert unknown_fields(job, "V1Job") == []
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {entry["name"]: entry for entry in container["env"]}
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "PREFECT_API_AUTH_STRING")
    for name in keys:
        assert env[name]["valueFrom"]["secretKeyRef"]["name"] == "nightjar"
    assert [name for name, entry in env.items() if ("value" in entry) == ("valueFrom" in entry)] == []
    assert env["NIGHTJAR_STORE"]["value"].startswith("s3://")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/data", "/tmp", env["NIGHTJAR_RESULTS"]["value"]} == mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert container["args"] == ["prefect", "flow-run", "execute"]
    assert all(container["resources"][kind].keys() == {"cpu", "memory"} for kind in ("requests", "limits"))
    assert container["securityContext"]["readOnlyRootFilesystem"]
    (user,) = [arguments for name, arguments in instructions() if name == "USER"]
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert pod["securityContext"]["runAsNonRoot"]


async def test_a_deployments_values_reach_the_job() -> None:
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    values = {
        "store": "s3://elsewhere/x", "memory_limit": "16Gi", "image": "registry.example/nightjar:1",
        "namespace": "nights", "secret": "keys", "results_claim": "mine",
        "env": {"AWS_ENDPOINT_URL": "http://minio:9000"},
    }  # fmt: skip
    made = await configured(KubernetesWorkerJobConfiguration, "kubernetes-pool.json", values)
    text = json.dumps(made.job_manifest)
    for value in (
        "s3://elsewhere/x",
        "16Gi",
        "registry.example/nightjar:1",
        '"namespace": "nights"',
        '"mine"',
    ):
        assert value in text
    assert "http://minio:9000" in text
    assert text.count('"name": "keys"') == 4
    assert "{{" not in text


CREDENTIAL = "somebody:what-only-the-server-knows"


@pytest.mark.parametrize("values", [{}, {"env": {"MORE": "1"}}], ids=["shipped", "with-env"])
async def test_no_job_carries_the_servers_credential_in_clear(values: dict[str, Any]) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings
    from prefect_docker.worker import DockerWorkerJobConfiguration
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    with temporary_settings({PREFECT_API_AUTH_STRING: CREDENTIAL}):
        docker = await configured(DockerWorkerJobConfiguration, "docker-pool.json", values)
        kubernetes = await configured(KubernetesWorkerJobConfiguration, "kubernetes-pool.json", values)
    assert docker.env.get("MORE") == values.get("env", {}).get("MORE")
    assert CREDENTIAL not in docker.model_dump_json() + kubernetes.model_dump_json()
    (container,) = kubernetes.job_manifest["spec"]["template"]["spec"]["containers"]
    (given,) = [entry for entry in container["env"] if entry["name"] == "PREFECT_API_AUTH_STRING"]
    assert given["valueFrom"]["secretKeyRef"] == {"name": "nightjar", "key": "prefect-auth", "optional": True}


def test_a_container_without_the_credential_takes_it_from_the_volume(tmp_path: Path) -> None:
    (entrypoint,) = [json.loads(arguments) for name, arguments in instructions() if name == "ENTRYPOINT"]
    shown = "import os; print(os.environ.get('PREFECT_API_AUTH_STRING'))"

    def started(**env: str) -> str:
        home = {"PATH": os.environ["PATH"], "NIGHTJAR_HOME": str(tmp_path)}
        command = [*entrypoint, sys.executable, "-c", shown]
        return subprocess.run(
            command, cwd=CHECKOUT, env=home | env, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert started() == "None"
    assert started(PREFECT_API_AUTH_STRING=CREDENTIAL) == CREDENTIAL
    assert started() == CREDENTIAL
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_every_variable_of_a_template_is_declared_and_used() -> None:
    for template in ("docker-pool.json", "kubernetes-pool.json"):
        document = json.loads((DEPLOYMENTS / template).read_text())
        used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(document["job_configuration"])))
        assert used == set(document["variables"]["properties"]), template


def test_the_kubernetes_manifests_hold_to_the_models_and_to_each_other() -> None:
    documents = list(yaml.safe_load_all((DEPLOYMENTS / "kubernetes.yaml").read_text()))
    kinds = {document["kind"]: document for document in documents}
    for document in documents:
        assert unknown_fields(document, f"V1{document['kind']}") == [], document["kind"]
    template = json.loads((DEPLOYMENTS / "kubernetes-pool.json").read_text())["variables"]["properties"]
    assert {document["metadata"]["namespace"] for document in documents} == {template["namespace"]["default"]}
    assert kinds["PersistentVolumeClaim"]["metadata"]["name"] == template["results_claim"]["default"]
    accounts = {entry["metadata"]["name"] for entry in documents if entry["kind"] == "ServiceAccount"}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    assert accounts == {pod["serviceAccountName"], template["service_account_name"]["default"]}
    assert pod["containers"][0]["image"] == template["image"]["default"]
    secrets = [
        entry["valueFrom"]["secretKeyRef"] for entry in pod["containers"][0]["env"] if "valueFrom" in entry
    ]
    assert [secret["name"] for secret in secrets] == [template["secret"]["default"]]


def test_the_kubernetes_worker_gives_jobs_a_reference_to_the_credential_and_watches_its_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect_kubernetes.settings import KubernetesSettings

    documents = list(yaml.safe_load_all((DEPLOYMENTS / "kubernetes.yaml").read_text()))
    (worker,) = [document for document in documents if document["kind"] == "Deployment"]
    env = {entry["name"]: entry for entry in worker["spec"]["template"]["spec"]["containers"][0]["env"]}
    for name, entry in env.items():
        if name.startswith("PREFECT_INTEGRATIONS_"):
            monkeypatch.setenv(name, entry["value"])
    settings = KubernetesSettings()
    found = settings.worker
    own = env["PREFECT_API_AUTH_STRING"]["valueFrom"]["secretKeyRef"]
    assert (found.api_auth_string_secret_name, found.api_auth_string_secret_key) == (own["name"], own["key"])
    # What a job's end makes of its run, a pod that ran out of memory say: it looks where its Role lets it.
    assert settings.observer.namespaces == {worker["metadata"]["namespace"]}


def unknown_fields(value: Any, kind: str, place: str = "") -> list[str]:
    """Fields that Kubernetes' models don't have, and values of another kind than theirs; the client itself
    passes both over."""
    from kubernetes_asyncio.client import models

    plain = {"str": str, "int": int, "bool": bool, "float": (int, float), "datetime": str, "object": object}
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{place} is no list"]
        return [
            found
            for at, entry in enumerate(value)
            for found in unknown_fields(entry, match[1], f"{place}[{at}]")
        ]
    if match := re.fullmatch(r"dict\(str, (.*)\)", kind):
        if not isinstance(value, dict):
            return [f"{place} is no mapping"]
        return [
            found
            for key, entry in value.items()
            for found in unknown_fields(entry, match[1], f"{place}.{key}")
        ]
    if kind in plain:
        return [] if isinstance(value, plain[kind]) else [f"{place} is no {kind}"]
    model = getattr(models, kind)
    fields = {key: model.openapi_types[name] for name, key in model.attribute_map.items()}
    if not isinstance(value, dict):
        return [f"{place} is no {kind}"]
    unknown = [f"{place}.{key} is no field of {kind}" for key in value if key not in fields]
    inside = (unknown_fields(value[key], fields[key], f"{place}.{key}") for key in value if key in fields)
    return [*unknown, *(found for part in inside for found in part)]


def test_a_field_that_kubernetes_does_not_have_is_found() -> None:
    wrong = {
        "spec": {"template": {"spec": {"containers": [{"name": "x", "comand": []}], "restartPolicy": 3}}}
    }
    assert unknown_fields(wrong, "V1Job") == [
        ".spec.template.spec.containers[0].comand is no field of V1Container",
        ".spec.template.spec.restartPolicy is no str",
    ]


# The image's steps, in a namespace that looks as the container does: /app read-only, /data and /tmp to write
# to, the image's user without any capability. Only the base image and the installation of packages are this
# machine's.


@pytest.fixture
def container(tmp_path: Path) -> list[str]:
    """The beginning of a command that runs in the container; skips without bubblewrap."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("bubblewrap is not installed (Debian: apt-get install bubblewrap)")
    app, data = tmp_path / "app", tmp_path / "data"
    data.mkdir()
    for source, target in copied():
        place = app / target
        place.parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / source).is_dir():
            shutil.copytree(CHECKOUT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / source, place)
    (user,) = [arguments for name, arguments in instructions() if name == "USER"]
    prefix, base = Path(sys.prefix), Path(sys.base_prefix)
    system = [Path("/") / name for name in ("usr", "bin", "sbin", "lib", "lib64", "etc")]
    binds = [("--ro-bind", path, path) for path in (*system, base) if path.exists()]
    binds += [("--ro-bind", prefix.resolve(), path) for path in {prefix, prefix.resolve()}]
    binds += [("--ro-bind", app, Path("/app")), ("--bind", data, Path("/data"))]
    command = [bwrap, "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    command += [str(part) for bind in binds for part in bind]
    command += ["--chdir", "/app", "--unshare-user", "--uid", user, "--gid", user, "--unshare-pid"]
    command += ["--die-with-parent", "--clearenv", "--setenv", "PATH", f"{prefix}/bin:/usr/bin:/bin"]
    # In place of `pip install --editable .`
    command += ["--setenv", "PYTHONPATH", "/app"]
    for name, value in environment().items():
        command += ["--setenv", name, value]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"bubblewrap can't make a namespace here: {tried.stderr.strip()}")
    return command


def in_container(container: list[str], *command: str, **env: str) -> "subprocess.CompletedProcess[str]":
    settings = [part for name, value in env.items() for part in ("--setenv", name, value)]
    return subprocess.run(
        [*container, *settings, *command], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.services
def test_the_image_finishes_a_night_under_its_user_with_nothing_to_write_to_but_its_volume(
    prefect: Any, container: list[str], tmp_path: Path
) -> None:
    assert in_container(container, "touch", "/app/x").returncode != 0
    env = {name: value for name, value in prefect.env.items() if name.startswith("PREFECT_API")}
    done = in_container(container, *COMPOSE["services"]["deploy"]["command"], **env)
    assert done.returncode == 0, done.stdout + done.stderr

    (command,) = [json.loads(arguments) for name, arguments in instructions() if name == "CMD"]
    settings = [part for name, value in env.items() for part in ("--setenv", name, value)]
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*container, *settings, *command], stdout=output, stderr=output, start_new_session=True
        )
    try:
        run = prefect.finished(prefect.trigger("suite/nightly", {}), patience=400)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(20)
    assert run["state_type"] == "COMPLETED", (run["state"], log.read_text()[-3000:])
    (found,) = (tmp_path / "data" / "results").glob("*/suite.json")
    night = found.parent
    assert json.loads(found.read_text())["passed"]
    assert len(list(night.glob("*/report.html"))) == 1
    assert len(list((tmp_path / "data" / "store" / "runs").glob("*.json"))) == 1
    assert {path.name for path in (tmp_path / "app").rglob("__pycache__")} == set()


@pytest.mark.services
def test_the_command_line_works_in_the_image(container: list[str], prefect: Any, tmp_path: Path) -> None:
    env = {name: value for name, value in prefect.env.items() if name.startswith("PREFECT_API")}
    done = in_container(container, "python", "-m", "flows.eval", "--limit", "5", "--json", **env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"].startswith("/data/results/")
    assert list((tmp_path / "data" / "results").glob("*/report.html"))
