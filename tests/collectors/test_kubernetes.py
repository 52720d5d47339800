"""Which GPUs pods have: a real gRPC server answers as the kubelet, a real HTTP server as the API server."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc_tools", reason="grpcio-tools, for the tests with a kubelet, is not installed")

from fakes.certificates import Authority
from fakes.clock import FakeClock
from fakes.kubelet import FakeApi, FakeKubelet, container, pod, serve_api, serve_kubelet
from fakes.reports import make_busy_gpu, make_gpu, make_process
from fakes.waiting import wait_until
from gpudeck.collectors.base import KubernetesSettings
from gpudeck.collectors.kubelet import list_containers, read_list
from gpudeck.collectors.kubernetes import KEPT_SECONDS, GpuFinder, PodWatch
from gpudeck.collectors.kubernetes_api import ApiServer, find_api_server
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.report import GpuReading, Report

IDS = [f"{number}0000000-1111-2222-3333-444444444444" for number in range(4)]
GPUS = [make_gpu(index, uuid=f"GPU-{one}", pci_address=f"00000000:{index}A:00.0") for index, one in enumerate(IDS)]
UUIDS = [gpu.uuid for gpu in GPUS]
MIGS = [
    make_gpu(0, uuid=f"MIG-{number}aaaaaaa-1111-2222-3333-444444444444", parent=UUIDS[0], instance=number)
    for number in range(2)
]
UID = "3f1c2d4e-5a6b-47c8-9d0e-1f2a3b4c5d6e"
RESOURCE = "nvidia.com/gpu"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def kubelet(path: Path) -> Iterator[FakeKubelet]:
    with serve_kubelet(path) as server:
        yield server


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serve_api() as server:
        yield server


@contextmanager
def watching(path: Path, api: FakeApi | None = None, **others: Any) -> Iterator[Callable[..., Report]]:
    """What is added to a report, which has the four GPUs unless told otherwise."""
    label = others.pop("user_label", None)
    if api is not None:
        (path.parent / "token").write_text("secret\n")

    def make(user_label: str | None) -> ApiServer | None:
        return None if api is None else ApiServer(api.address, "gpu01", path.parent, user_label)

    settings = KubernetesSettings(socket=str(path), user_label=label)
    with closing(PodWatch(settings, api=make, pause=0.01, **others)) as watch:

        def look(gpus: list[GpuReading] = GPUS) -> Report:
            return watch.add_to(Report(gpus=list(gpus)))

        wait_until(lambda: look().problems != ["The kubelet has not been read yet."])
        yield look


def given(report: Report) -> dict[str, list[str]]:
    return {f"{one.namespace}/{one.pod}/{one.container}": one.gpus for one in report.pods}


def test_containers_with_their_gpus_and_the_others_are_free(path: Path, kubelet: FakeKubelet) -> None:
    kubelet.pods = [
        container("ml/train-0", {RESOURCE: [UUIDS[2], UUIDS[0]], "rdma/hca": ["0"]}, name="trainer"),
        container("kube-system/dns", {}),
        container("net/fast", {"nvidia.com/hostdev": ["0000:3b:02.1"], "devices.kubevirt.io/kvm": ["kvm1"]}),
    ]
    with watching(path) as look:
        report = look()
        assert given(report) == {"ml/train-0/trainer": [UUIDS[0], UUIDS[2]]}
        assert (report.allocation_unknown, report.problems) == ({}, [])
        kubelet.pods = []
        wait_until(lambda: look().pods == [])


@pytest.mark.parametrize(
    ("resource", "device", "expected"),
    [
        (RESOURCE, UUIDS[1], [1]),
        (RESOURCE, UUIDS[1].upper(), [1]),
        ("nvidia.com/gpu.shared", f"{UUIDS[1]}::3", [1]),
        ("example.com/a100", UUIDS[1], [1]),
        (RESOURCE, IDS[1], [1]),
        (RESOURCE, "1", [1]),
        (RESOURCE, "nvidia1", [1]),
        (RESOURCE, "nvidia1/vgpu4", [1]),
        ("amd.com/gpu", "0000:1a:00.0", [1]),
        ("rdma/hca", "1", []),
        (RESOURCE, "GPU-ffffffff-1111-2222-3333-444444444444", []),
    ],
)
def test_what_device_plugins_call_a_gpu(resource: str, device: str, expected: list[int]) -> None:
    found = GpuFinder(GPUS).find(resource, device)
    assert (list(found.gpus), found.why) == ([UUIDS[index] for index in expected], None)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (MIGS[1].uuid, [1]),
        (MIGS[1].uuid.removeprefix("MIG-"), [1]),
        (f"{MIGS[1].uuid}::0", [1]),
        ("0:1", [1]),
        (UUIDS[0], [0, 1]),
        ("MIG-ffffffff-1111-2222-3333-444444444444", []),
    ],
)
def test_what_device_plugins_call_an_instance(device: str, expected: list[int]) -> None:
    found = GpuFinder([*MIGS, *GPUS[1:]]).find("nvidia.com/mig-3g.40gb", device)
    assert (list(found.gpus), found.why) == ([MIGS[index].uuid for index in expected], None)


@pytest.mark.parametrize("device", [f"MIG-{UUIDS[0]}/7/0", "nvidia0/gi7", "nvidia0/gi7/vgpu1"])
def test_an_instance_of_which_only_the_board_is_known_makes_that_board_unknown(device: str) -> None:
    found = GpuFinder([*MIGS, *GPUS[1:]]).find("nvidia.com/mig-3g.40gb", device)
    assert list(found.gpus) == [gpu.uuid for gpu in MIGS]
    assert found.why == "which instance of this board that is, is not known"
    assert GpuFinder([MIGS[0], *GPUS[1:]]).find(RESOURCE, device).why is None


def test_drivers_of_before_470_name_an_instance_by_its_board() -> None:
    old = make_gpu(0, uuid=f"MIG-{UUIDS[0]}/7/0", parent=UUIDS[0], instance=0)
    assert list(GpuFinder([old, MIGS[1]]).find("nvidia.com/mig-1g.5gb", old.uuid).gpus) == [old.uuid]


def test_a_device_that_is_no_gpu_here_makes_the_other_empty_ones_unknown(path: Path, kubelet: FakeKubelet) -> None:
    kubelet.pods = [container("ml/a", {RESOURCE: [UUIDS[0], "card7"]})]
    with watching(path) as look:
        report = look()
    assert given(report) == {"ml/a/main": [UUIDS[0]]}
    why = "ml/a was given nvidia.com/gpu card7: no GPU here is called that"
    assert report.allocation_unknown == dict.fromkeys(UUIDS[1:], why)


def test_names_of_the_api_server(path: Path, kubelet: FakeKubelet, api: FakeApi) -> None:
    kubelet.pods = [container("ml/web-5d4f-x7", {RESOURCE: [UUIDS[0]]}), container("ml/new", {RESOURCE: [UUIDS[1]]})]
    replica_set = {"kind": "ReplicaSet", "name": "web-5d4f", "controller": True}
    about = {"labels": {"team": "vision", "pod-template-hash": "5d4f"}, "ownerReferences": [replica_set]}
    api.pods.append(pod("ml/web-5d4f-x7", UID, metadata=about))
    with watching(path, api) as look:
        new, web = look().pods
    assert (web.owner, web.labels["team"], web.since, web.user) == ("Deployment/web", "vision", 1794974400.0, None)
    assert (new.owner, new.labels) == (None, {})
    paths = ("pods?fieldSelector=spec.nodeName%3Dgpu01&resourceVersion=0", "nodes/gpu01?resourceVersion=0")
    assert set(api.asked) == {(f"/api/v1/{one}", "Bearer secret") for one in paths}


def test_the_user_of_a_pod_is_what_a_label_or_annotation_says(path: Path, kubelet: FakeKubelet, api: FakeApi) -> None:
    kubelet.pods = [container("j/a", {RESOURCE: [UUIDS[0]]}), container("j/b", {RESOURCE: [UUIDS[1]]})]
    api.pods.extend(
        [pod("j/a", metadata={"labels": {"who": "ann"}}), pod("j/b", metadata={"annotations": {"who": "bob\x1b"}})]
    )
    with watching(path, api, user_label="who") as look:
        assert [one.user for one in look().pods] == ["ann", "bob"]


def test_processes_get_the_name_of_their_pod_by_its_uid(path: Path, kubelet: FakeKubelet, api: FakeApi) -> None:
    status = {"containerStatuses": [{"name": "trainer", "containerID": f"containerd://{'ab12' * 16}"}]}
    api.pods.append(pod("ml/train-0", UID, status=status, metadata={"labels": {"who": "ann"}}))
    process = make_process(
        user="root", job=UID, container="ab12ab12ab12", evidence=f"root in container ab12ab12ab12 of pod {UID}"
    )
    other = make_process(pid=9, job="4711")
    gpu = make_gpu(0, uuid=UUIDS[0], processes=[process, other])
    with watching(path, api, user_label="who") as look:
        found, same = (look([gpu]).gpus or [gpu])[0].processes or []
    assert (found.user, found.job, found.container) == ("ann", "ml/train-0", "trainer")
    assert found.evidence == "root in container trainer of pod ml/train-0, user by the pod's label"
    assert same == other


def test_finished_pods_that_are_still_listed_are_dropped(path: Path, kubelet: FakeKubelet, api: FakeApi) -> None:
    kubelet.pods = [container(f"ml/{name}", {RESOURCE: [uuid]}) for name, uuid in zip("abc", UUIDS, strict=False)]
    api.pods.extend([pod("ml/a", phase="Succeeded"), pod("ml/b", phase="Failed"), pod("ml/c", phase="Pending")])
    with watching(path, api) as look:
        assert given(look()) == {"ml/c/main": [UUIDS[2]]}
        # Another pod of that name, on the same GPU: the kubelet's list looks the same.
        api.pods[0] = pod("ml/a", "another", phase="Running")
        wait_until(lambda: given(look()) == {"ml/a/main": [UUIDS[0]], "ml/c/main": [UUIDS[2]]})
        # One that was finished a while ago counts again while the API server cannot be asked.
        api.answers["/api/v1/pods"] = 500
        kubelet.pods = kubelet.pods[:2]
        wait_until(lambda: given(look()) == {"ml/a/main": [UUIDS[0]], "ml/b/main": [UUIDS[1]]})


def test_gpus_of_hami_are_those_of_its_annotation(path: Path, kubelet: FakeKubelet, api: FakeApi) -> None:
    kubelet.pods = [container("ml/half", {RESOURCE: [f"{UUIDS[3]}-2"]}), container("ml/more", {RESOURCE: [UUIDS[0]]})]
    text = f"{UUIDS[1]},NVIDIA,3000,30:{UUIDS[2]},NVIDIA,3000,30:;;"
    api.pods.append(pod("ml/half", metadata={"annotations": {"hami.io/vgpu-devices-allocated": text}}))
    with watching(path, api) as look:
        report = look()
    assert given(report) == {"ml/half/None": UUIDS[1:3], "ml/more/main": [UUIDS[0]]}
    assert report.allocation_unknown == {}
    with watching(path) as look:
        report = look()
    assert report.allocation_unknown.keys() == {UUIDS[1], UUIDS[2], UUIDS[3]}
    assert "only an annotation of the pod says which GPU that is (HAMi)" in report.allocation_unknown[UUIDS[1]]


def slices(*devices: dict[str, Any], driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    return {"items": [{"spec": {"driver": driver, "pool": {"name": "gpu01"}, "devices": list(devices)}}, EMPTY_SLICE]}


EMPTY_SLICE = {"spec": {"driver": "x", "pool": {"name": "p"}}}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_claimed_devices_are_found_through_resource_slices(
    version: str, path: Path, kubelet: FakeKubelet, api: FakeApi
) -> None:
    driver = "gpu.nvidia.com"
    kubelet.pods = [
        container("dra/a", claimed=[(driver, "gpu01", "gpu-1"), ("compute-domain.nvidia.com", "gpu01", "channel-0")]),
        container("dra/b", claimed=[(driver, "gpu01", "gpu-2")]),
        container("dra/c", claimed=[(driver, "gpu01", "gpu-0-mig-1g12gb-19-0")]),
    ]
    attributes: list[dict[str, Any]] = [
        {"uuid": {"string": UUIDS[1]}, "minor": {"int": 1}},
        {"resource.kubernetes.io/pciBusID": {"string": "0000:2a:00.0"}},
        {"parentUUID": {"string": UUIDS[0]}, "profile": {"string": "1g.12gb"}},
    ]
    names = ("gpu-1", "gpu-2", "gpu-0-mig-1g12gb-19-0")
    found = [
        {"name": name, **({"attributes": one} if version == "v1" else {"basic": {"attributes": one}})}
        for name, one in zip(names, attributes, strict=True)
    ]
    api.answers[f"/apis/resource.k8s.io/{version}/"] = slices(*found)
    assert api.pods == []
    with watching(path, api) as look:
        report = look([*MIGS, *GPUS[1:]])
    assert given(report) == {"dra/a/main": [UUIDS[1]], "dra/b/main": [UUIDS[2]]}
    assert report.allocation_unknown.keys() == {gpu.uuid for gpu in MIGS}


def test_claimed_devices_without_slices_make_empty_gpus_unknown(path: Path, kubelet: FakeKubelet) -> None:
    kubelet.pods = [container("dra/a", claimed=[("gpu.nvidia.com", "gpu01", "gpu-1"), ("net.example", "p", "nic")])]
    with watching(path) as look:
        report = look()
    why = "dra/a was given gpu.nvidia.com/gpu01/gpu-1: its UUID, of its resource slice, is not known"
    assert report.allocation_unknown == dict.fromkeys(UUIDS, why)


@pytest.mark.parametrize(
    ("answer", "closed"),
    [
        ({"kind": "Node", "spec": {"unschedulable": True, "taints": []}}, "cordoned in Kubernetes"),
        ({"kind": "Node", "spec": {"podCIDR": "10.0.0.0/24"}}, None),
        (403, None),
        (404, None),
    ],
)
def test_a_cordoned_node_is_closed(
    answer: Any, closed: str | None, path: Path, kubelet: FakeKubelet, api: FakeApi
) -> None:
    kubelet.pods = [container("ml/a", {RESOURCE: [UUIDS[0]]})]
    _ = api.pods
    api.answers["/api/v1/nodes/gpu01"] = answer
    with watching(path, api) as look:
        report = look()
    assert (report.closed, report.problems) == (closed, [])


def test_an_api_server_that_refuses_costs_the_names_only(path: Path, kubelet: FakeKubelet, api: FakeApi) -> None:
    kubelet.pods = [container("ml/a", {RESOURCE: [UUIDS[0]]})]
    api.answers["/api/v1/pods"] = 403
    with watching(path, api) as look:
        report = look()
    assert given(report) == {"ml/a/main": [UUIDS[0]]}
    assert report.problems == [
        "The pods' labels, owners and phases are not known: the API server answers 403: the service account may not "
        "list this."
    ]


@pytest.mark.parametrize("answer", [b"{", b"[]", b'{"items":[{"metadata":{"name":7}}]}', b"[" * 100_000, 500])
def test_rubbish_of_the_api_server_costs_the_names_only(
    answer: Any, path: Path, kubelet: FakeKubelet, api: FakeApi
) -> None:
    kubelet.pods = [container("ml/a", {RESOURCE: [UUIDS[0]]})]
    api.answers["/api/v1/pods"] = answer
    with watching(path, api) as look:
        report = look()
    assert (given(report), len(report.problems)) == ({"ml/a/main": [UUIDS[0]]}, 1)


def test_the_api_server_is_that_of_the_pods_environment(tmp_path: Path) -> None:
    here = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443", "NODE_NAME": "gpu01"}
    assert find_api_server(None, here, tmp_path) is None
    (tmp_path / "token").write_text("t")
    assert find_api_server(None, {}, tmp_path) is None
    assert find_api_server(None, {**here, "NODE_NAME": ""}, tmp_path) is None


def test_the_service_accounts_authority_is_the_only_one_that_is_believed(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "Stranger")
    (tmp_path / "token").write_text("t")
    with serve_api(authority.server_context()) as api:
        api.pods.append(pod("ml/a", UID))
        port = api.address.rpartition(":")[2]
        here = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port, "NODE_NAME": "gpu01"}
        (tmp_path / "ca.crt").write_bytes(authority.ca_file.read_bytes())
        believed = find_api_server(None, here, tmp_path)
        assert believed is not None
        assert believed.read_pods()["ml", "a"].uid == UID
        (tmp_path / "ca.crt").write_bytes(stranger.ca_file.read_bytes())
        distrusted = find_api_server(None, here, tmp_path)
        assert distrusted is not None
        with pytest.raises(Temporary, match="the API server cannot be asked"):
            distrusted.read_pods()
        (tmp_path / "ca.crt").unlink()
        nobody = find_api_server(None, here, tmp_path)
        assert nobody is not None
        with pytest.raises(Temporary, match=r"the API server cannot be asked: the certificates in .* cannot be read"):
            nobody.read_pods()


def test_without_the_folder_of_the_socket_there_is_no_kubernetes(tmp_path: Path) -> None:
    with closing(PodWatch(KubernetesSettings(socket=str(tmp_path / "no" / "kubelet.sock")))) as watch:
        report = Report(gpus=list(GPUS))
        assert watch.add_to(report) is report
    with closing(PodWatch(KubernetesSettings(socket=""))) as watch:
        assert watch.add_to(report) is report


def test_a_folder_into_which_the_agent_may_not_look_is_that_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, folder = os.stat, tmp_path / "kubelet"

    def refuse(path: Any, **others: Any) -> os.stat_result:
        if path == str(folder):
            raise PermissionError(13, "Permission denied")
        return look_up(path, **others)

    # Root, as whom tests may run, may look into every folder.
    monkeypatch.setattr(os, "stat", refuse)
    with watching(folder / "kubelet.sock") as look:
        assert look().allocation_unknown.keys() == set(UUIDS)


def test_without_the_socket_empty_gpus_are_unknown_and_used_ones_are_not(path: Path) -> None:
    gpus = [make_busy_gpu(0, uuid=UUIDS[0]), *GPUS[1:]]
    with watching(path) as look:
        report = look(gpus)
    why = f"the kubelet cannot be read: {path}: no such file or directory"
    assert report.allocation_unknown == dict.fromkeys(UUIDS[1:], why)
    assert report.problems == [f"T{why[1:]}."]


def test_a_kubelet_that_hangs_delays_nothing_and_its_last_word_counts_for_a_while(
    path: Path, kubelet: FakeKubelet
) -> None:
    kubelet.pods = [container("ml/a", {RESOURCE: UUIDS[:2]})]
    clock = FakeClock()
    gpus = [make_busy_gpu(0, uuid=UUIDS[0]), *GPUS[1:]]
    with watching(path, clock=clock) as look:
        assert given(look(gpus)) == {"ml/a/main": UUIDS[:2]}
        kubelet.gate.clear()
        calls = kubelet.calls
        wait_until(lambda: kubelet.calls > calls)
        assert given(look(gpus)) == {"ml/a/main": UUIDS[:2]}
        clock.advance(KEPT_SECONDS + 1)
        report = look(gpus)
        # The GPU that is in use keeps its pod.
        assert given(report) == {"ml/a/main": UUIDS[:1]}
        assert report.allocation_unknown.keys() == set(UUIDS[1:])
        kubelet.gate.set()
        wait_until(lambda: given(look(gpus)) == {"ml/a/main": UUIDS[:2]})


def test_a_hung_kubelet_is_given_up_in_time(path: Path, kubelet: FakeKubelet) -> None:
    kubelet.gate.clear()
    with pytest.raises(Temporary, match=r"kubelet\.sock did not answer within 0\.2 s"):
        list_containers(str(path), 0.2)


def test_a_socket_that_may_not_be_opened_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Root, as whom tests may run, may open every socket.
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(Refused, match=r"permission denied\. Run the agent as root"):
        list_containers(str(path))


def test_errors_of_the_kubelet_are_told(path: Path, kubelet: FakeKubelet) -> None:
    import grpc  # noqa: PLC0415 - of the tests' own dependencies

    kubelet.failure = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit\x1b[31m")
    with pytest.raises(Temporary, match=r"HTTP 200, gRPC 8\): rejected by rate limit\[31m"):
        list_containers(str(path))


@pytest.mark.parametrize(
    "raw",
    [b"\x0a", b"\x0a\xff", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0b", b"\x0d\x01", b"\xff" * 64],
)
def test_rubbish_is_no_list(raw: bytes, path: Path, kubelet: FakeKubelet) -> None:
    kubelet.raw = raw
    with pytest.raises(Temporary, match="gave an answer that is not understood"):
        list_containers(str(path))


def test_a_list_that_is_cut_anywhere_is_refused_or_a_shorter_list() -> None:
    from fakes.kubelet import MESSAGES  # noqa: PLC0415

    pods = [container(f"ml/{name}", {RESOURCE: [UUIDS[0]]}, claimed=[("d", "p", "n")]) for name in "ab"]
    whole = MESSAGES.ListPodResourcesResponse(pod_resources=pods).SerializeToString()
    complete = read_list(whole)
    for end in range(len(whole)):
        try:
            found = read_list(whole[:end])
        except ValueError:
            continue
        assert found == complete[: len(found)]


@pytest.mark.parametrize("spoken", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0" * 4096])
def test_a_server_that_speaks_something_else(spoken: bytes, path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(path))
        server.listen()

        def speak() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(spoken)

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(Temporary):
            list_containers(str(path), 3.0)
        thread.join()


def test_ten_thousand_containers(path: Path, kubelet: FakeKubelet) -> None:
    kubelet.pods = [container(f"ml/p{number}", {RESOURCE: [f"{UUIDS[0]}::{number}"]}) for number in range(10_000)]
    assert len(list_containers(str(path), 60.0)) == 10_000
    with watching(path) as look:
        report = wait_until(lambda: found if (found := look()).pods else None)
    assert {tuple(one.gpus) for one in report.pods} == {(UUIDS[0],)}
    assert len(report.pods) <= 64


def test_names_have_no_control_characters(path: Path, kubelet: FakeKubelet) -> None:
    kubelet.pods = [container("m\x1b[2Jl/a\nb", {RESOURCE: [UUIDS[0]]}, name="x" * 5000)]
    with watching(path) as look:
        (found,) = look().pods
    assert (found.namespace, found.pod, found.container) == ("m[2Jl", "a b", "x" * 256)


def test_gpus_that_cannot_be_read_have_no_pods(path: Path, kubelet: FakeKubelet) -> None:
    kubelet.pods = [container("ml/a", {RESOURCE: [UUIDS[0]]})]
    gpus: list[GpuReading] = []
    with watching(path) as look:
        assert look(gpus) == Report(gpus=[])
