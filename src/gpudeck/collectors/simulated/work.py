"""The users and their work: five kinds of jobs, each with its lengths, its demand and its commands.

training   steady high utilization, with pauses for checkpoints or validation
loader     training that waits for its data: up and down between 6 and 80 %
notebook   bursts while its user is there, long idle otherwise
inference  a server whose load varies
holder     worked once, then keeps its memory and does nothing

What a job computes is another matter: mixed precision on the tensor cores, FP32 or FP64 without them, copies limited by
the memory, or kernels that are too small for the GPU (`Pattern`).

A few users use most of the lab (Zipf), and each prefers the machines of their own group.
"""

from bisect import bisect
from itertools import accumulate
from math import exp, log, log2
from random import Random
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.collectors.simulated.chance import draw, seeded_random

Kind = Literal["training", "loader", "notebook", "inference", "holder"]

_MODELS = ("llama-8b", "vit-large", "unet3d", "whisper-medium", "mistral-7b", "qwen-32b", "dino-base", "gpt-mini")
_PYTHON_TRAININGS = (
    "python train.py --config configs/{project}.yaml --seed {number}",
    "python -m {module}.train --model {model} --lr 3e-4 --epochs {number}",
    "python finetune.py --base {model} --lora-rank 16 --run {project}-{number}",
)
_PARALLEL_TRAININGS = (
    "torchrun --nproc-per-node={gpus} train.py --config configs/{project}.yaml",
    "accelerate launch --num_processes {gpus} finetune.py --base {model} --run {project}-{number}",
    "deepspeed --num_gpus {gpus} pretrain.py --project {project} --stage 2",
)
_LOADERS = (
    "python train.py --data {project}-raw --workers 2 --batch-size {number}",
    "python preprocess_and_train.py --project {project} --decode cpu",
)
_NOTEBOOKS = (
    "python -m ipykernel_launcher -f kernel-{number}.json",
    "jupyter-lab --no-browser --port 8{number:03d}",
    "python -m marimo edit {project}.py",
)
_SERVERS = (
    "vllm serve {model} --tensor-parallel-size {gpus} --port 8{number:03d}",
    "python -m sglang.launch_server --model-path {model} --tp {gpus}",
    "tritonserver --model-repository={project}/models",
)
_HOLDERS = (
    "python -i debug_{module}.py",
    "python evaluate.py --project {project} --then-wait",
    "ipython --profile {project}",
    "python demo.py --model {model} --share",
)
GROUPS: dict[str, tuple[str, ...]] = {
    "vision": ("segmenter", "depthnet", "tracker", "ocr"),
    "language": ("tinylm", "reranker", "summarizer", "tokenizer-study"),
    "robotics": ("grasping", "gait", "worldmodel", "teleop"),
    "biology": ("folding", "cellseg", "docking", "protein-lm"),
    "speech": ("asr", "voices", "diarize", "denoise"),
    "climate": ("nowcast", "downscale", "ocean-emulator", "fire-risk"),
}
"""The groups of the lab and what they work on."""

FIRST_NAMES = (
    *("mara", "jonas", "aylin", "tomas", "priya", "lukas", "ines", "kenji", "sofia", "emil", "noor", "felix"),
    *("leila", "oskar", "yuki", "clara", "dmitri", "anouk", "rafael", "hanna", "bjorn", "chiara", "malik", "greta"),
    *("ivan", "zeynep", "paul", "amara", "henrik", "linh", "diego", "frieda", "samir", "elif", "mateo", "ruth"),
)


class JobProfile(Struct, frozen=True):
    """How one kind usually goes. Pairs are (lowest, highest). `weight` is how often it is started; lengths are
    log-normal around `median_s`. `swing` is how far the level strays, in percent."""

    weight: float
    median_s: float
    sigma: float
    gpus: dict[int, float]
    level: tuple[float, float]
    swing: float
    memory_share: tuple[float, float]
    intensity: tuple[float, float]
    period_s: tuple[int, int]
    commands: tuple[str, ...]
    parallel_commands: tuple[str, ...] = ()

    def length_s(self, rng: Random, *, met_midway: bool = False) -> float:
        """How long one lasts. `met_midway`: of a job that runs at a given time, which is more often a long one."""
        shift = self.sigma**2 if met_midway else 0.0
        return rng.lognormvariate(log(self.median_s) + shift, self.sigma)

    @property
    def presence(self) -> float:
        return self.weight * self.median_s * exp(self.sigma**2 / 2)


_HOUR = 3600.0
_PERIOD = (900, 3600)
# fmt: off
PROFILES: dict[Kind, JobProfile] = {
    "training": JobProfile(
        1.0, 3.6 * _HOUR, 1.1, {1: 0.5, 2: 0.22, 4: 0.17, 8: 0.11}, (0.84, 0.98), 3.0, (0.35, 0.94), (0.72, 1.0),
        _PERIOD, _PYTHON_TRAININGS, _PARALLEL_TRAININGS),
    "loader": JobProfile(
        0.4, 2.2 * _HOUR, 1.0, {1: 0.8, 2: 0.2}, (0.36, 0.52), 30.0, (0.2, 0.6), (0.6, 0.8), _PERIOD, _LOADERS),
    "notebook": JobProfile(
        0.75, 2.4 * _HOUR, 0.8, {1: 1.0}, (0.35, 0.9), 14.0, (0.06, 0.4), (0.5, 0.9), (1500, 2700), _NOTEBOOKS),
    "inference": JobProfile(
        0.2, 9 * _HOUR, 0.8, {1: 0.6, 2: 0.25, 4: 0.15}, (0.14, 0.36), 9.0, (0.5, 0.92), (0.55, 0.8),
        (240, 480), _SERVERS),
    "holder": JobProfile(
        0.42, 4.5 * _HOUR, 0.8, {1: 0.75, 2: 0.25}, (0.4, 0.9), 8.0, (0.15, 0.85), (0.6, 0.9), (600, 4200), _HOLDERS),
}
# fmt: on

Pattern = Literal["mixed", "single", "double", "memory", "decode", "tiny"]
_PATTERNS: dict[Kind, dict[Pattern, float]] = {
    "training": {"mixed": 0.72, "single": 0.1, "double": 0.04, "memory": 0.08, "tiny": 0.06},
    "loader": {"mixed": 0.8, "single": 0.2},
    "notebook": {"mixed": 0.4, "single": 0.3, "tiny": 0.3},
    "inference": {"decode": 1.0},
    "holder": {"mixed": 0.6, "single": 0.2, "tiny": 0.2},
}
"""The computations of each kind of jobs, and how often they occur."""
ACTIVITY_METRICS = (
    *("sm_activity_percent", "sm_occupancy_percent", "tensor_activity_percent", "dram_activity_percent"),
    *("fp64_activity_percent", "fp32_activity_percent", "fp16_activity_percent"),
    *("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"),
    *("nvlink_receive_bytes_per_second", "nvlink_transmit_bytes_per_second"),
)
_SHARES: dict[Pattern, tuple[float, ...]] = {
    "mixed": (0.96, 0.3, 0.72, 0.4, 0.0, 0.06, 0.04),
    "single": (0.94, 0.42, 0.0, 0.33, 0.0, 0.58, 0.0),
    "double": (0.94, 0.36, 0.0, 0.3, 0.55, 0.05, 0.0),
    "memory": (0.97, 0.7, 0.0, 0.9, 0.0, 0.08, 0.0),
    "decode": (0.86, 0.25, 0.14, 0.78, 0.0, 0.05, 0.06),
    "tiny": (0.05, 0.02, 0.0, 0.02, 0.0, 0.02, 0.0),
}
"""The percentages of ACTIVITY_METRICS as shares of the utilization."""
_FETCHED: dict[Kind, float] = {"training": 6e8, "loader": 5e9, "notebook": 3e8, "inference": 4e8, "holder": 2e8}
"""Bytes per second over PCIe at full utilization."""
_EXCHANGED = 9e10
"""Bytes per second over NVLink at full utilization, of a job on several GPUs."""


class Work(Struct, frozen=True):
    """The behavior of one job, known when it starts. It loads for `load_s`, its memory grows for `ramp_s` to
    `memory_share` of each GPU. `period_s` is from checkpoint to checkpoint, a time in which a user may try something, a
    time of even load, or how long a holder works. `rest_s` and `rest_level` are its pauses. `activity` are the values
    of ACTIVITY_METRICS at full utilization."""

    kind: Kind
    load_s: int
    ramp_s: int
    period_s: int
    rest_s: int
    rest_level: float
    level: float
    swing: float
    intensity: float
    bandwidth: float
    memory_share: float
    threads: float
    ram_bytes: int
    salt: int
    pattern: Pattern
    activity: tuple[float, ...]


_T = TypeVar("_T")


def pick(rng: Random, weights: dict[_T, float]) -> _T:
    return _choose(weights, rng.random())


def _choose(weights: dict[_T, float], luck: float) -> _T:
    keys = tuple(weights)
    bounds = tuple(accumulate(weights.values()))
    return keys[bisect(bounds, luck * bounds[-1], 0, len(keys) - 1)]


def pick_size(rng: Random, kind: Kind, most: int) -> int:
    return pick(rng, {size: weight for size, weight in PROFILES[kind].gpus.items() if size <= most})


def draw_work(rng: Random, kind: Kind, *, brisk: bool, gpus: int = 1, room: float = 1.0) -> Work:
    profile = PROFILES[kind]
    load_s = rng.randint(6, 15) if brisk else rng.randint(20, 110)
    work = Work(
        kind=kind,
        load_s=load_s,
        ramp_s=round(load_s * rng.uniform(1.1, 2.0)),
        period_s=rng.randint(*profile.period_s),
        rest_s=rng.randint(15, 75),
        rest_level=rng.choice((0.0, 0.0, 0.22, 0.35)),
        level=rng.uniform(*profile.level),
        swing=profile.swing,
        intensity=rng.uniform(*profile.intensity),
        bandwidth=rng.uniform(0.3, 0.7),
        memory_share=rng.uniform(*profile.memory_share) * room,
        threads=rng.uniform(6, 12) if kind == "loader" else rng.uniform(1.5, 5),
        ram_bytes=rng.randint(6, 48) << 30,
        salt=rng.getrandbits(24),
        pattern="mixed",
        activity=(),
    )
    return _compute(work, gpus)


def _compute(work: Work, gpus: int) -> Work:
    """The work with its pattern, chosen by its salt. Tiny kernels keep a GPU resident, and hardly warm it."""
    salt = work.salt
    pattern = _choose(_PATTERNS[work.kind], draw(salt, 900_001))
    scale = 0.85 + 0.2 * draw(salt, 900_002)
    shares = [min(1.0, scale * share) for share in _SHARES[pattern]]
    fetched, exchanged = scale * _FETCHED[work.kind], scale * _EXCHANGED * (gpus > 1 and pattern != "tiny")
    made = replace(work, pattern=pattern, activity=(*shares, fetched, 0.15 * fetched, exchanged, 0.98 * exchanged))
    if pattern == "tiny":
        return replace(made, level=0.2 + 0.4 * draw(salt, 900_003), intensity=0.12, bandwidth=0.02)
    return replace(made, bandwidth=0.9) if pattern == "memory" else made


def write_command(rng: Random, kind: Kind, project: str, gpus: int) -> str:
    profile = PROFILES[kind]
    form = rng.choice(profile.parallel_commands if gpus > 1 and profile.parallel_commands else profile.commands)
    module = project.replace("-", "_")
    return form.format(
        project=project, module=module, model=rng.choice(_MODELS), number=rng.randint(10, 400), gpus=gpus
    )


class User(Struct, frozen=True):
    """`projects` are what the user's commands name; `in_container` whether the user works in containers."""

    name: str
    uid: int
    group: str
    projects: tuple[str, ...]
    in_container: bool


class LabUsers:
    """All users of a fleet of that many hosts; their number grows slowly with it."""

    def __init__(self, seed: int, hosts: int) -> None:
        rng = seeded_random(seed, "people")
        firsts = rng.sample(FIRST_NAMES, len(FIRST_NAMES))
        names = [*firsts, *(name + letter for letter in "kmst" for name in firsts)]
        self.users = tuple(_user(rng, uid, name) for uid, name in enumerate(names[: round(12 + 4 * log2(hosts + 1))]))
        self._weights = {group: tuple(accumulate(self._appetite(group))) for group in GROUPS}

    def pick(self, rng: Random, group: str) -> User:
        weights = self._weights[group]
        return self.users[bisect(weights, rng.random() * weights[-1], 0, len(weights) - 1)]

    def _appetite(self, group: str) -> list[float]:
        return [(4.0 if user.group == group else 1.0) / rank for rank, user in enumerate(self.users, start=2)]


def _user(rng: Random, number: int, name: str) -> User:
    group = rng.choice(tuple(GROUPS))
    return User(name, 1001 + number, group, tuple(rng.sample(GROUPS[group], 2)), rng.random() < 0.35)
