"""The Kubernetes files: every object is valid, strictly, and says what the README promises."""

from __future__ import annotations

import base64
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cryptography import x509
from faults import worker_environment
from faults.nightly import CLUSTER
from faults.packages import missing

FOLDER = CLUSTER / "kubernetes"
VERSION = "1.30"
Object = dict[str, Any]


@cache
def objects() -> tuple[Object, ...]:
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) == 4
    return tuple(found for file in files for found in yaml.safe_load_all(file.read_text()))


def of_kind(kind: str) -> list[Object]:
    return [found for found in objects() if found["kind"] == kind]


def pods() -> dict[str, Object]:
    (cluster,), (job,) = of_kind("DaskCluster"), of_kind("CronJob")
    return {
        "scheduler": cluster["spec"]["scheduler"]["spec"],
        "worker": cluster["spec"]["worker"]["spec"],
        "trusted": job["spec"]["jobTemplate"]["spec"]["template"]["spec"],
    }


LABELS: dict[str, dict[str, str]] = {
    # what the operator gives to its pods (build_scheduler_deployment_spec, build_worker_deployment_spec)
    "scheduler": {"dask.org/cluster-name": "dpdist", "dask.org/component": "scheduler"},
    "worker": {
        "dask.org/cluster-name": "dpdist", "dask.org/component": "worker",
        "dask.org/workergroup-name": "dpdist-default",
    },
    "trusted": {"app.kubernetes.io/name": "dpdist", "app.kubernetes.io/component": "trusted"},
    "stranger": {"app": "other"},
}  # fmt: skip


def strict(schema: Any) -> Any:
    """Return a schema that refuses fields it does not name: a server would drop them in silence."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in made and made.get("type") == "object" and "additionalProperties" not in made:
        made["additionalProperties"] = False
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return made


def test_objects_of_the_core_are_valid_and_a_misplaced_field_is_found() -> None:
    for kind in ("Namespace", "PersistentVolumeClaim", "NetworkPolicy", "CronJob"):
        assert of_kind(kind)
        for found in of_kind(kind):
            kubernetes_validate.validate(found, VERSION, strict=True)
    for which in ("scheduler", "worker"):  # the pods that the operator makes
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": which}, "spec": pods()[which]}
        kubernetes_validate.validate(pod, VERSION, strict=True)
    (job,) = of_kind("CronJob")
    spec = {**job["spec"]}
    template = {**spec["jobTemplate"], "concurrencyPolicy": spec.pop("concurrencyPolicy")}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**job, "spec": {**spec, "jobTemplate": template}}, VERSION, strict=True)


def test_the_dask_cluster_is_what_the_operator_defines_and_a_wrong_one_is_not() -> None:
    found = importlib.util.find_spec("dask_kubernetes")
    if found is None or found.origin is None:
        missing("dask-kubernetes", "pip install --no-deps dask-kubernetes")
    chart = Path(found.origin).parent / "operator" / "deployment" / "helm" / "dask-kubernetes-operator"
    definition = yaml.safe_load((chart / "crds" / "daskcluster.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {"const": "kubernetes.dask.org/v1"}, "kind": {"const": "DaskCluster"},
                             "metadata": {"type": "object"}}  # fmt: skip
    validator = jsonschema.Draft4Validator(schema)
    (cluster,) = of_kind("DaskCluster")
    validator.validate(cluster)
    for key, value in (("replica", 3), ("replicas", "four")):
        wrong = deepcopy(cluster)
        wrong["spec"]["worker"][key] = value
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


def test_each_role_gets_its_own_key_and_the_workers_the_one_environment() -> None:
    command = (sys.executable, FOLDER / "print-secrets", "7")
    made = subprocess.run(command, input=b"sentinel-8351\n", capture_output=True, check=True, timeout=600)
    found = list(yaml.safe_load_all(made.stdout))
    for one in found:
        kubernetes_validate.validate(one, VERSION, strict=True)
    content = {one["metadata"]["name"]: one["data"] for one in found}
    assert base64.b64decode(content["dpdist-ledger"]["password"]) == b"sentinel-8351"
    for role in ("scheduler", "worker", "client"):
        files = {name: base64.b64decode(value) for name, value in content[f"dpdist-{role}-tls"].items()}
        assert set(files) == {"ca.pem", f"{role}.pem", f"{role}.key"}
        assert f"CN={role}" in x509.load_pem_x509_certificate(files[f"{role}.pem"]).subject.rfc4514_string()
    assert worker_environment.declared().items() <= content["dpdist-worker-env"].items()


@pytest.mark.parametrize(
    ("which", "secrets", "volumes"),
    [
        ("scheduler", {"dpdist-scheduler-tls"}, set()),
        ("worker", {"dpdist-worker-tls"}, {"dpdist-rows"}),
        ("trusted", {"dpdist-client-tls", "dpdist-ledger"}, {"dpdist-rows", "dpdist-work"}),
    ],
)
def test_a_pod_is_restricted_and_holds_the_secrets_of_its_own_role_only(
    which: str, secrets: set[str], volumes: set[str]
) -> None:
    pod = pods()[which]
    mounted = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    (container,) = pod["containers"]
    sources = [variable.get("valueFrom", {}) for variable in container["env"]]
    named = {source["secretKeyRef"]["name"] for source in sources if "secretKeyRef" in source}
    assert mounted | named == secrets
    claims = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert {claim["claimName"] for claim in claims} == volumes
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "memory" in container["resources"]["limits"]
    assert {"configMapRef": {"name": "dpdist-worker-env"}} in container["envFrom"]


def test_the_job_runs_one_at_a_time_and_again_only_when_that_may_help() -> None:
    (job,) = of_kind("CronJob")
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    (rule,) = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["values"] == [1, 2, 3, 4]  # dpdist.core.errors; 5 is resumable
    (container,) = pods()["trusted"]["containers"]
    assert rule["onExitCodes"]["containerName"] == container["name"]


def selected(selector: Object, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def peers(peer: Object, namespace: str, labels: dict[str, str]) -> bool:
    assert set(peer) <= {"podSelector", "namespaceSelector"}
    there = {"kubernetes.io/metadata.name": namespace}
    in_place = selected(peer["namespaceSelector"], there) if "namespaceSelector" in peer else namespace == "dpdist"
    return in_place and selected(peer.get("podSelector", {}), labels)


def rules(direction: str, labels: dict[str, str]) -> Iterator[Object]:
    """Yield the rules for a pod of this namespace; policies add up, and a pod that none selects is free."""
    chosen = [policy["spec"] for policy in of_kind("NetworkPolicy") if selected(policy["spec"]["podSelector"], labels)]
    assert any(direction.capitalize() in spec["policyTypes"] for spec in chosen)
    for spec in chosen:
        yield from spec.get(direction, [])


def allowed(direction: str, here: str, namespace: str, there: dict[str, str], port: int) -> bool:
    end = {"ingress": "from", "egress": "to"}[direction]
    return any(
        any(peers(peer, namespace, there) for peer in rule[end])
        and any(one["port"] <= port <= one.get("endPort", one["port"]) for one in rule["ports"])
        for rule in rules(direction, LABELS[here])
    )


PODS = ("scheduler", "worker", "trusted", "stranger")
WORKER_PORTS = (8788, 8789)


def test_pods_reach_each_other_where_they_must_and_only_the_trusted_one_reaches_the_ledger() -> None:
    reached = {
        (source, target, port)
        for source, target, port in product(PODS, PODS, (53, 5432, 8786, 8787, *WORKER_PORTS))
        if allowed("egress", source, "dpdist", LABELS[target], port)
        and allowed("ingress", target, "dpdist", LABELS[source], port)
    }
    workers = {(who, "worker", port) for who in ("scheduler", "worker", "trusted") for port in WORKER_PORTS}
    assert reached == workers | {("worker", "scheduler", 8786), ("trusted", "scheduler", 8786)}
    for target, source, port in product(PODS, PODS, (8786, *WORKER_PORTS, 8787)):
        assert not allowed("ingress", target, "elsewhere", LABELS[source], port)
    for source in PODS:
        assert allowed("egress", source, "ledger", {"app": "postgres"}, 5432) is (source == "trusted")
        assert not allowed("egress", source, "elsewhere", {}, 443)
        assert allowed("egress", source, "kube-system", {"k8s-app": "kube-dns"}, 53)


def test_policies_ports_and_arguments_agree() -> None:
    words = pods()["worker"]["containers"][0]["args"]
    assert tuple(int(words[words.index(option) + 1]) for option in ("--worker-port", "--nanny-port")) == WORKER_PORTS
    (cluster,) = of_kind("DaskCluster")
    service = cluster["spec"]["scheduler"]["service"]
    assert service["selector"] == LABELS["scheduler"]
    assert [port["port"] for port in service["ports"]] == [8786]
    (job,) = of_kind("CronJob")
    assert job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"] == LABELS["trusted"]
