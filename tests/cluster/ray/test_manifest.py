"""containers/ray.yaml describes pods that Kubernetes accepts and a run that the harness accepts."""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from harness.cli.run import parser
from harness.cli.run_options import invocation, read_run_options
from harness.core.extras import EXTRAS
from harness.search.options import RepeatOptions

ROOT = Path(__file__).parents[3]
DEFINITION = "KUBERAY_CRD"
CLUSTER, JOB = yaml.safe_load_all((ROOT / "containers/ray.yaml").read_text())
HEAD = CLUSTER["spec"]["headGroupSpec"]
(NODES,) = CLUSTER["spec"]["workerGroupSpecs"]


def pod(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}


def test_job_and_pods_fit_the_kubernetes_schema() -> None:
    kubernetes_validate.validate(JOB, "1.31", strict=True)
    for group in (HEAD, NODES):
        kubernetes_validate.validate(pod(group["template"]), "1.31", strict=True)
    wrong = yaml.safe_load(yaml.safe_dump(pod(HEAD["template"])))
    wrong["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def closed(schema: Any) -> Any:
    """Makes the schema refuse unknown fields, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(part) for key, part in schema.items()}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def test_the_cluster_fits_the_kuberay_schema() -> None:
    path = os.environ.get(DEFINITION)
    if path is None:
        pytest.skip(f"set {DEFINITION} to KubeRay's ray.io_rayclusters.yaml")
    versions = yaml.safe_load(Path(path).read_text())["spec"]["versions"]
    (schema,) = [v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v1"]
    # Kubernetes defines these fields of `metadata`.
    schema["properties"]["metadata"]["properties"] = {"name": {}, "labels": {}}
    holds = jsonschema.Draft202012Validator(closed(schema))
    assert not list(holds.iter_errors(CLUSTER))
    wrong = deepcopy(CLUSTER)
    wrong["spec"]["authOptions"]["mode"] = "tokens"
    wrong["spec"]["workerGroupSpecs"][0]["maxReplica"] = 1
    assert len(list(holds.iter_errors(wrong))) == 2


def test_the_run_takes_every_node_of_the_cluster_with_its_token() -> None:
    (driver,) = JOB["spec"]["template"]["spec"]["containers"]
    config = invocation(*read_run_options(parser(), driver["args"]), RepeatOptions).config
    assert config.nodes == f"ray://{CLUSTER['metadata']['name']}-head-svc:10001"
    assert config.node_count == NODES["replicas"] == NODES["maxReplicas"]
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    (token,) = driver["env"]
    assert token["name"] == "RAY_AUTH_TOKEN"
    assert token["valueFrom"]["secretKeyRef"]["name"] == CLUSTER["metadata"]["name"]


def test_version_and_extra_match_this_checkout() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert f"\nray=={CLUSTER['spec']['rayVersion']}\n" in constraints
    text = (ROOT / "containers/ray.yaml").read_text()
    (extras,) = [
        line.split("EXTRAS=")[1].split()[0] for line in text.splitlines() if "EXTRAS=" in line
    ]
    assert {"ray"} <= {*extras.split(",")} <= {*EXTRAS}


def test_nodes_have_separate_machines_and_the_head_runs_no_work() -> None:
    (rule,) = NODES["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = NODES["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()
    assert HEAD["rayStartParams"]["num-cpus"] == "0"
