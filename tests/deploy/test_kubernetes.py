"""The manifests for Kubernetes: the API knows every field, and every name leads somewhere. No kubelet runs here."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from docs.documents import ROOT
from gpudeck.collectors.base import KubernetesSettings
from gpudeck.settings import load_settings

FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS = {
    f"{one['kind']}-{one['metadata']['name']}": one
    for file in sorted(FOLDER.glob("*.yaml"))
    if file.name != "kustomization.yaml"
    for one in yaml.safe_load_all(file.read_text())
}
PODS = {
    name: MANIFESTS[name]["spec"]["template"]["spec"] for name in ("StatefulSet-gpudeck-hub", "DaemonSet-gpudeck-agent")
}


@pytest.mark.parametrize("version", ["1.28", "1.32", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_knows_every_field(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def test_field_that_kubernetes_does_not_know_is_noticed() -> None:
    wrong = MANIFESTS["Service-gpudeck-hub"] | {"spec": {"selectors": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.32", strict=True)


def test_all_is_in_one_namespace_and_in_the_kustomization() -> None:
    own = [one for name, one in MANIFESTS.items() if not name.startswith("ClusterRole")]
    spaces = {one["metadata"].get("namespace", one["metadata"]["name"]) for one in own}
    assert spaces == {KUSTOMIZATION["namespace"]}
    files = {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml", "ingress.yaml"}
    assert set(KUSTOMIZATION["resources"]) == files
    images = {one["image"] for pod in PODS.values() for one in pod["containers"]}
    assert {one["name"] for one in KUSTOMIZATION["images"]} == images


@pytest.mark.parametrize("name", PODS)
def test_every_mount_has_its_volume(name: str) -> None:
    claims = MANIFESTS[name]["spec"].get("volumeClaimTemplates", ())
    volumes = {one["name"] for one in PODS[name]["volumes"]} | {one["metadata"]["name"] for one in claims}
    (container,) = PODS[name]["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == volumes


@pytest.mark.parametrize("name", PODS)
def test_pods_are_what_their_service_and_their_set_select(name: str) -> None:
    spec = MANIFESTS[name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    if name.startswith("StatefulSet"):
        assert MANIFESTS["Service-gpudeck-hub"]["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("name", PODS)
def test_no_pod_is_privileged(name: str) -> None:
    (container,) = PODS[name]["containers"]
    assert PODS[name]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_only_the_agent_is_root_for_the_kubelets_socket() -> None:
    assert PODS["StatefulSet-gpudeck-hub"]["securityContext"]["runAsNonRoot"] is True
    agent = PODS["DaemonSet-gpudeck-agent"]
    assert agent["securityContext"]["runAsUser"] == 0
    (container,) = agent["containers"]
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert mounts[str(Path(KubernetesSettings().socket).parent)] is True
    paths = [one["hostPath"]["path"] for one in agent["volumes"] if "hostPath" in one]
    assert paths == ["/etc/passwd", "/var/lib/kubelet/pod-resources", "/sys/fs/cgroup"]
    assert mounts["/host/sys/fs/cgroup"] is True


def test_agent_may_read_pods_nodes_and_resource_slices_and_nothing_else() -> None:
    rules = MANIFESTS["ClusterRole-gpudeck-agent"]["rules"]
    assert [(one["resources"], one["verbs"]) for one in rules] == [
        (["pods"], ["list"]),
        (["nodes"], ["get"]),
        (["resourceslices"], ["list"]),
    ]
    (subject,) = MANIFESTS["ClusterRoleBinding-gpudeck-agent"]["subjects"]
    account = MANIFESTS["ServiceAccount-gpudeck-agent"]["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert PODS["DaemonSet-gpudeck-agent"]["serviceAccountName"] == account["name"]


def test_agent_sees_the_processes_of_its_host_and_takes_no_gpu() -> None:
    pod = PODS["DaemonSet-gpudeck-agent"]
    assert (pod["hostPID"], pod["hostNetwork"], pod["tolerations"]) == (True, True, [{"operator": "Exists"}])
    (container,) = pod["containers"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]
    # Its node's name is also what the agent asks the API server for.
    assert "NODE_NAME" in {one["name"] for one in container["env"]}


SHIPPED = {
    "kubernetes": MANIFESTS["ConfigMap-gpudeck-hub"]["data"]["gpudeck.yaml"],
    "container": (ROOT / "deploy" / "container" / "gpudeck.yaml").read_text(),
    "debian": (ROOT / "deploy" / "debian" / "gpudeck.yaml").read_text(),
}


@pytest.mark.parametrize("place", SHIPPED)
def test_settings_that_are_shipped_are_understood(place: str, tmp_path: Path) -> None:
    file = tmp_path / "gpudeck.yaml"
    # So are the ones that comments offer.
    file.write_text(re.sub(r"^#(?=\w|  )", "", SHIPPED[place], flags=re.MULTILINE))
    settings, _ = load_settings(file)
    assert (str(settings.listen.host), settings.listen.port, settings.read) == ("0.0.0.0", 8042, "login")


def test_settings_of_the_agent_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "gpudeck.yaml"
    text = MANIFESTS["ConfigMap-gpudeck-agent"]["data"]["gpudeck.yaml"]
    file.write_text(re.sub(r"^#(?=  )", "", text, flags=re.MULTILINE))
    settings, _ = load_settings(file)
    assert settings.agent.kubernetes.user_label == "hub.jupyter.org/username"
