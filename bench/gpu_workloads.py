"""Three programs that keep a GPU busy in different ways, until they are ended: children of bench/real_programs.py.

    python bench/gpu_workloads.py training|copies|tiny STEPS_FILE

Each writes the time of every step (CLOCK_MONOTONIC) into the file. They need PyTorch with CUDA, and nothing of gpudeck.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore] # where there is a GPU

WIDTH = 8192


def train() -> Iterator[None]:
    """A perceptron of four layers in bf16 with its optimizer: matrix products on the tensor cores fill the GPU."""
    layers: list[Any] = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch, target = torch.randn(2, WIDTH, WIDTH, device="cuda").unbind()
    while True:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(batch), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def copy() -> Iterator[None]:
    """Copies of 16 GiB within the memory of the GPU, far more than its cache: hardly any arithmetic."""
    one, other = torch.zeros(2, 2**32, device="cuda").unbind()
    while True:
        other.copy_(one)
        torch.add(other, 1.0, out=one)
        yield


def launch_tiny() -> Iterator[None]:
    """Kernels of a few blocks, one after the other: to launch them takes longer than to run them."""
    small = torch.randn(64, 64, device="cuda")
    weight = torch.randn(64, 64, device="cuda") / 8
    while True:
        for _ in range(1000):
            small = torch.tanh(small @ weight)
        yield


def run(steps: Iterator[None], file: Path) -> None:
    """The next step is started before the end of the last one is waited for, so that the GPU always has work."""
    ends: list[Any] = []
    with file.open("w", buffering=1) as out:
        for _ in steps:
            end = torch.cuda.Event()
            end.record()
            ends.append(end)
            if len(ends) > 1:
                ends.pop(0).synchronize()
                out.write(f"{time.monotonic():.6f}\n")


WORKLOADS: dict[str, Callable[[], Iterator[None]]] = {"training": train, "copies": copy, "tiny": launch_tiny}

if __name__ == "__main__":
    run(WORKLOADS[sys.argv[1]](), Path(sys.argv[2]))
