"""The image, the compose file and the Kubernetes Job agree with the program on paths, ports, options and extras."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from harness.cli.run import parser
from harness.cli.run_options import invocation, read_run_options
from harness.core.config.parse import Endpoint
from harness.core.config.run_config import RunConfig
from harness.core.extras import EXTRAS
from harness.core.files import cache_dir
from harness.run.supervisor.metrics import endpoint
from harness.search.options import RepeatOptions

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())["services"]
CLAIM, JOB = yaml.safe_load_all((CONTAINERS / "job.yaml").read_text())
POD = JOB["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, SETUPTOOLS = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]


def _instructions() -> list[tuple[str, str]]:
    """Returns (instruction, words) with continued lines joined and comments removed."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(name, " ".join(rest.split())) for name, rest in pairs]


INSTRUCTIONS = _instructions()


def _of(name: str) -> list[str]:
    return [words for instruction, words in INSTRUCTIONS if instruction == name]


def _config(words: list[str]) -> RunConfig:
    """Returns the run that these arguments of the image describe. Raises a ConfigError if an argument is wrong."""
    return invocation(*read_run_options(parser(), words), RepeatOptions).config


def test_every_stage_and_argument_is_declared() -> None:
    stages = [words.partition(" AS ")[2] for words in _of("FROM")]
    arguments = {words.partition("=")[0] for words in _of("ARG")}
    sources = [words.split()[0] for words in _of("FROM")]
    assert {"${DEVICE}", "python"} <= {*sources}
    assert {"cpu", "cuda", "build"} <= {*stages}
    assert {match[1] for text in _of("COPY") if (match := re.search(r"--from=(\S+)", text))} <= {
        *stages
    }
    assert arguments == {"DEVICE", "EXTRAS"}


def test_the_extras_of_the_image_exist() -> None:
    pairs = [words.split("=", 1) for line in (*_of("ENV"), *_of("ARG")) for words in line.split()]
    chosen = {value for name, value in pairs if name in ("ORT", "EXTRAS")}
    extras = {name for text in chosen for name in text.split(",")}
    assert extras == {"ort", "ort-gpu", "onnx", "report"}
    assert extras <= set(EXTRAS)


COMES_WITH = {
    "python3": "python3",
    "apt-get": "",
    "rm": "",
    "install": "",
    "/opt/mlperf-harness/bin/python": "python3-venv",
}
"""Maps a command in a build step of the image to the Debian package that provides it; empty if the base image does."""


def test_every_command_of_a_step_exists() -> None:
    installed = {
        word
        for step in _of("RUN")
        for words in map(shlex.split, step.split("&&"))
        if words[:2] == ["apt-get", "install"]
        for word in words[2:]
    }
    for step in _of("RUN"):
        for words in map(shlex.split, step.split("&&")):
            assert COMES_WITH[words[0]] in {"", *installed}, words
    assert "g++" in installed  # LoadGen is compiled on arm64, which needs g++
    (entry,) = _of("ENTRYPOINT")
    assert yaml.safe_load(entry)[0] in PROJECT["scripts"]


def test_the_build_context_holds_exactly_the_files_of_the_wheel() -> None:
    lines = (CONTAINERS / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert lines[lines.index("*") - 1].startswith("#")
    assert {name for name in kept if not (ROOT / name).exists()} == set()
    folders = {name.split("/")[0] for name in SETUPTOOLS["package-dir"].values()}
    modules = {f"{name}.py" for name in SETUPTOOLS["py-modules"]}
    about = {"pyproject.toml", "constraints.txt", PROJECT["readme"], *PROJECT["license-files"]}
    assert kept == folders | modules | about


def test_the_metrics_of_a_container_are_where_prometheus_looks() -> None:
    port = endpoint.DEFAULT.port
    assert _of("EXPOSE") == [str(port)]
    scraped = yaml.safe_load((ROOT / "dashboards/prometheus.yml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == [f"{endpoint.DEFAULT.host}:{port}"]
    assert all(service["network_mode"] == "host" for service in COMPOSE.values())
    assert CONTAINER["ports"] == [{"name": "metrics", "containerPort": port}]
    annotations = POD["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    assert _config(CONTAINER["args"]).metrics == Endpoint("0.0.0.0", port)


def test_the_arguments_are_valid_run_options(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (COMPOSE["harness"]["command"], CONTAINER["args"], *_documented()):
        assert _config(words).scenario, words
    assert capsys.readouterr().err == ""


def _documented() -> Iterator[list[str]]:
    """Yields the arguments for the image in the commands on pages and in the files themselves."""
    texts = [path.read_text() for path in (*CONTAINERS.iterdir(), ROOT / "docs/containers.md")]
    for text in texts:
        for words in re.findall(
            r"(?:docker run|compose run) .*(--scenario .*)$", text, re.MULTILINE
        ):
            yield shlex.split(words)


def test_compose_mounts_files_that_exist_where_the_programs_read_them() -> None:
    mounted: dict[str, Path] = {}
    for name in ("prometheus", "grafana"):
        for volume in COMPOSE[name]["volumes"]:
            source, target, _ = volume.split(":")
            assert (CONTAINERS / source).exists(), volume
            mounted[target] = CONTAINERS / source
    config = f"--config.file={next(t for t in mounted if t.endswith('/prometheus.yml'))}"
    assert config in COMPOSE["prometheus"]["command"]
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounted[home] == CONTAINERS / "../dashboards/harness.json"
    provider = yaml.safe_load((ROOT / "dashboards/provisioning/dashboards/harness.yml").read_text())
    assert Path(home).parent == Path(provider["providers"][0]["options"]["path"])
    build = COMPOSE["harness"]["build"]
    assert (CONTAINERS / build["context"] / build["dockerfile"]).samefile(CONTAINERS / "Dockerfile")


def test_the_output_of_a_run_lands_in_a_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir,) = _of("WORKDIR")
    results = f"{workdir}/results"
    assert COMPOSE["harness"]["volumes"][0]["target"] == results
    environment = dict(pair.split("=", 1) for line in _of("ENV") for pair in line.split())
    monkeypatch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
    mounts = {Path(mount["mountPath"]): mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert {Path(results), cache_dir().parent, Path("/tmp")} == set(mounts)
    volumes = {volume["name"]: volume for volume in POD["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes)
    claim = volumes[mounts[Path(results)]]["persistentVolumeClaim"]["claimName"]
    assert claim == CLAIM["metadata"]["name"]
    (step,) = [step for step in _of("RUN") if step.startswith("install ")]
    assert {"--mode=1777", results, environment["HOME"]} <= set(shlex.split(step))


def test_the_job_fits_the_kubernetes_schema() -> None:
    for manifest in (CLAIM, JOB):
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    wrong: dict[str, Any] = yaml.safe_load(yaml.safe_dump(JOB))
    wrong["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_the_job_runs_once_as_the_user_of_the_image_on_whole_cores() -> None:
    spec = POD["spec"]
    assert (JOB["spec"]["backoffLimit"], spec["restartPolicy"]) == (0, "Never")
    user, group = map(int, _of("USER")[0].split(":"))
    security = spec["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (user, group)
    resources = CONTAINER["resources"]
    assert resources["requests"] == resources["limits"]
    assert int(resources["limits"]["cpu"]) > 1
