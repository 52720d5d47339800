"""Rates and addresses, from a /proc/net that a test lays out."""

from pathlib import Path

import pytest

from gpudeck.collectors.base import NEEDS_TWO
from gpudeck.collectors.host import NO_INTERFACE, RATES, RESET, HostFiles, Network
from gpudeck.model.report import Number

HEAD = "Inter-|   Receive                |  Transmit\n face |bytes    packets|bytes    packets\n"
CAPTURES = Path(__file__).parent.parent / "captures" / "net"


def write(net: Path, **totals: tuple[int, int]) -> None:
    lines = [f"{name}:{received} 9 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0\n" for name, (received, sent) in totals.items()]
    (net / "dev").write_text(HEAD + "".join(lines))


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "proc/self/net").mkdir(parents=True)
    return tmp_path / "proc/self/net"


@pytest.fixture
def network(net: Path, tmp_path: Path) -> "NetworkOf":
    return NetworkOf(tmp_path)


class NetworkOf:
    """The network of the machine whose files are there."""

    def __init__(self, root: Path, *, is_container: bool = False) -> None:
        self._files = HostFiles(root)
        self._network = Network(is_container=is_container)

    def read_rates(self, now: float) -> dict[str, Number]:
        return self._network.read_rates(self._files, now)

    def find_addresses(self) -> dict[str, str]:
        return self._network.find_addresses(self._files)


def add_device(tmp_path: Path, name: str) -> None:
    (tmp_path / "sys/class/net" / name / "device").mkdir(parents=True)


def test_rate_is_what_came_between_two_readings(net: Path, network: NetworkOf) -> None:
    write(net, eth0=(1000, 10), ib0=(5000, 50))
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(10.0)
    write(net, eth0=(3000, 30), ib0=(9000, 90))
    assert network.read_rates(12.0) == dict(zip(RATES, (3000.0, 30.0), strict=True))


@pytest.mark.parametrize(
    "name",
    ["lo", "veth12ab", "docker0", "br-9f0c", "virbr0", "cni0", "flannel.1", "ifb0", "cali99", "tap0", "tailscale0"],
)
def test_virtual_interfaces_do_not_count(net: Path, network: NetworkOf, name: str) -> None:
    write(net, **{name: (0, 0), "eth0": (0, 0)})
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(0.0)
    write(net, **{name: (7777, 7777), "eth0": (10, 20)})
    assert network.read_rates(1.0) == dict(zip(RATES, (10.0, 20.0), strict=True))


def test_bond_does_not_count_again_what_its_interfaces_carry(net: Path, network: NetworkOf, tmp_path: Path) -> None:
    add_device(tmp_path, "eth0")
    add_device(tmp_path, "eth1")
    write(net, bond0=(0, 0), eth0=(0, 0), eth1=(0, 0))
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(0.0)
    write(net, bond0=(30, 3), eth0=(10, 1), eth1=(20, 2))
    assert network.read_rates(1.0)[RATES[0]] == 30


def test_counter_that_starts_again_gives_no_rate_once(net: Path, network: NetworkOf) -> None:
    write(net, eth0=(1000, 1000))
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(0.0)
    write(net, eth0=(10, 2000))
    with pytest.raises(ValueError, match=RESET):
        network.read_rates(1.0)
    write(net, eth0=(20, 2100))
    assert network.read_rates(2.0) == dict(zip(RATES, (10.0, 100.0), strict=True))


def test_interface_that_comes_up_counts_from_its_second_reading_on(net: Path, network: NetworkOf) -> None:
    write(net, eth0=(0, 0))
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(0.0)
    write(net, eth0=(10, 10), eth1=(10**12, 10**12))
    assert network.read_rates(1.0)[RATES[0]] == 10
    write(net, eth0=(20, 20), eth1=(10**12 + 5, 10**12))
    assert network.read_rates(2.0)[RATES[0]] == 15


def test_interface_that_went_away_leaves_the_others_alone(net: Path, network: NetworkOf) -> None:
    write(net, eth0=(0, 0), eth1=(100, 100))
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(0.0)
    write(net, eth0=(10, 10))
    assert network.read_rates(1.0)[RATES[0]] == 10


@pytest.mark.parametrize("now", [5.0, 4.0])
def test_clock_that_does_not_go_forward_gives_no_rate(net: Path, network: NetworkOf, now: float) -> None:
    write(net, eth0=(0, 0))
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(5.0)
    with pytest.raises(ValueError, match=NEEDS_TWO):
        network.read_rates(now)


def test_container_with_its_own_network_says_nothing_of_the_hosts(net: Path, tmp_path: Path) -> None:
    network = NetworkOf(tmp_path, is_container=True)
    write(net, lo=(0, 0), eth0=(0, 0))
    (net / "if_inet6").write_text("fd000000000000000000000000000002 04 40 00 82     eth0\n")
    with pytest.raises(ValueError, match=NO_INTERFACE):
        network.read_rates(0.0)
    assert network.find_addresses() == {}


def test_container_in_the_hosts_network_reports_it(net: Path, tmp_path: Path) -> None:
    add_device(tmp_path, "eth0")
    network = NetworkOf(tmp_path, is_container=True)
    write(net, eth0=(0, 0))
    (net / "if_inet6").write_text("fd000000000000000000000000000002 04 40 00 82     eth0\n")
    assert network.find_addresses() == {"fd00::2": "eth0"}


def test_addresses_are_those_others_can_use(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/net").symlink_to(CAPTURES / "gpu-server-with-docker")
    network = NetworkOf(tmp_path)
    addresses = {"192.0.2.17": "eno1", "198.51.100.9": "ib0", "2001:db8:0:5::17": "eno1"}
    assert network.find_addresses() == addresses


def test_addresses_are_none_where_the_files_cannot_be_understood(net: Path, network: NetworkOf) -> None:
    write(net, eth0=(0, 0))
    (net / "fib_trie").write_text("|-- 10.0.0.1\n   /32 host LOCAL\n")
    (net / "route").write_text("Iface Destination\neth0 zz zz zz\n")
    assert network.find_addresses() == {}


def test_machine_that_shows_no_files_has_no_addresses(network: NetworkOf) -> None:
    assert network.find_addresses() == {}
