"""What hosts and GPU models are called where people read them. For showing only: nothing is found or kept by it."""

from typing import Annotated

from msgspec import Meta, Struct, field

_MAKERS = ("NVIDIA GeForce ", "NVIDIA ", "AMD Instinct ", "AMD Radeon ", "AMD ", "Intel(R) ", "Intel ", "Tesla ")

_Shown = Annotated[str, Meta(min_length=1, max_length=64)]


class Names(Struct, frozen=True):
    """Other names to show, where the machines' own are too long or say nothing."""

    hosts: dict[str, _Shown] = field(default_factory=dict)
    """Names to show for hosts, by the names they report under, such as srv-a17: Big one."""
    models: dict[str, _Shown] = field(default_factory=dict)
    """Names to show for GPU models, by those of the driver, such as NVIDIA H100 80GB HBM3: H100."""

    def of_host(self, name: str) -> str:
        return self.hosts.get(name, name)

    def of_model(self, name: str) -> str:
        """Without its maker, where nothing else is said: people know an H200 when they see one."""
        return self.models.get(name) or without_maker(name)


def without_maker(name: str) -> str:
    for maker in _MAKERS:
        if name.startswith(maker):
            return name[len(maker) :] or name
    return name
