"""The host's network: how much passes through its physical interfaces, and its addresses, from /proc/net.

Bonds, VLANs and bridges carry again what a physical interface below them carries: only interfaces with a device behind
them count. Where the kernel shows no device for any, all count that are not virtual by their name.
"""

import ipaddress
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from gpudeck.collectors.base import NEEDS_TWO
from gpudeck.model.report import Number

RESET = "a network interface counts from zero again"
NO_INTERFACE = "no physical network interface is seen"
RATES = ("network_receive_bytes_per_second", "network_transmit_bytes_per_second")

_VIRTUAL = re.compile(
    r"lo|(?:br-|cali|cilium|cni|docker|dummy|flannel|ifb|kube|lxc|lxd|nerdctl|podman|tailscale|tap|tun|veth|virbr|vnet|wg)"
    r".*"
)
_LOCAL_IPV4 = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_ADDRESSES_AT_MOST = 64

Totals = dict[str, tuple[int, int]]
"""Bytes received and sent, by the interface's name."""


class Network:
    """`net` is a /proc/<pid>/net, `devices` a /sys/class/net. Not for several threads at once.

    `is_container`: a container with a network of its own sees no physical interface and can say nothing of the host's.
    """

    def __init__(self, net: Path, devices: Path, *, is_container: bool = False) -> None:
        self._net = net
        self._devices = devices
        self._is_container = is_container
        self._before: tuple[float, Totals] | None = None
        self._physical: tuple[list[str], list[str]] = ([], [])

    def read_rates(self, now: float) -> dict[str, Number]:
        """Bytes a second since the reading before, in and out. Raises OSError, and ValueError with the reason."""
        totals = self._read_totals()
        before, self._before = self._before, (now, totals)
        if before is None:
            raise ValueError(NEEDS_TWO)
        return rates_between(before[1], totals, now - before[0])

    def find_addresses(self) -> dict[str, str]:
        """Where others may reach this machine: no loopback, no link-local address, none of a virtual bridge. Each with
        the name of its interface, empty where that is not known.

        Empty where that cannot be read. Costs more than the rates, and hardly ever changes.
        """
        try:
            self._read_totals()  # raises where nothing of the host's network is seen
            found = dict(chain(self._find_ipv4(), self._find_ipv6()))
        except (OSError, ValueError, IndexError):
            return {}
        return dict(islice(found.items(), _ADDRESSES_AT_MOST))

    def _read_totals(self) -> Totals:
        totals = parse_interfaces((self._net / "dev").read_text())
        names = list(totals)
        if names != self._physical[0]:
            likely = [name for name in names if not _VIRTUAL.fullmatch(name)]
            with_device = [name for name in likely if (self._devices / name / "device").exists()]
            self._physical = (names, with_device or ([] if self._is_container else likely))
        if not self._physical[1]:
            raise ValueError(NO_INTERFACE)
        return {name: totals[name] for name in self._physical[1]}

    def _find_ipv4(self) -> Iterator[tuple[str, str]]:
        networks = parse_routes(_read(self._net / "route"))
        for text in _LOCAL_IPV4.findall(_read(self._net / "fib_trie")):
            address = ipaddress.IPv4Address(text)
            # The kernel gives addresses without their interface: the network they lie in has one.
            through = max((at for at in networks if address in at[0]), key=lambda at: at[0].prefixlen, default=None)
            interface = "" if through is None else through[1]
            if not (address.is_loopback or address.is_link_local or _VIRTUAL.fullmatch(interface)):
                yield str(address), interface

    def _find_ipv6(self) -> Iterator[tuple[str, str]]:
        for line in _read(self._net / "if_inet6").splitlines():
            digits, *_, interface = line.split() or [""]
            if len(digits) == 32:
                address = ipaddress.IPv6Address(int(digits, 16))
                if not (address.is_loopback or address.is_link_local or _VIRTUAL.fullmatch(interface)):
                    yield str(address), interface


def rates_between(before: Totals, after: Totals, seconds: float) -> dict[str, Number]:
    """Bytes a second, in and out. Raises ValueError with the reason where there are none."""
    # An interface that has just come up has no earlier reading: it counts from the next one on.
    pairs = [(before[name], total) for name, total in after.items() if name in before]
    if seconds <= 0 or not pairs:
        raise ValueError(NEEDS_TWO)
    grown = [[now[way] - then[way] for then, now in pairs] for way in (0, 1)]
    if min(map(min, grown)) < 0:
        raise ValueError(RESET)
    return {name: sum(growth) / seconds for name, growth in zip(RATES, grown, strict=True)}


def parse_interfaces(text: str) -> Totals:
    """`text` is /proc/net/dev. A name stands close to its figures where those are long: `eth0:123456`."""
    totals: Totals = {}
    for line in text.splitlines()[2:]:
        name, _, figures = line.rpartition(":")
        values = figures.split()
        totals[name.strip()] = (int(values[0]), int(values[8]))
    return totals


def parse_routes(text: str) -> list[tuple[ipaddress.IPv4Network, str]]:
    """The networks that lie right behind an interface, from /proc/net/route, which has its numbers byte by byte."""
    found = []
    for line in text.splitlines()[1:]:
        interface, destination, gateway, *rest = line.split()
        if int(gateway, 16) == 0:
            network = (_swap(destination), str(ipaddress.IPv4Address(_swap(rest[4]))))
            found.append((ipaddress.IPv4Network(network), interface))
    return found


def _swap(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), "little")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
