"""gpumonitor's config.yml: its hosts are watched as nodes of gpumonitor, its ports and its patience are settings."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from gpudeck.compat.importing import ImportContext, ImportPlan, add_hosts, read_yaml_mapping
from gpudeck.discovery.host_names import quote
from gpudeck.model.errors import UsageError

_NUMBERS = {"web_port": (1, 65535), "rpc_port": (1, 65535), "rpc_timeout": (0.1, 60)}
_LOOK = "It is a YAML file with `hosts`, `rpc_port`, `rpc_timeout` and `web_port`."
# 615 MiB on an empty H200 with driver 580: NVML's first memory call, which the nodes use, counts it as used.
_EMPTY = "fleet: {availability: {empty_bytes: 1GiB}}  # the nodes count memory that the driver reserves as used"

Named = dict[str, tuple[yaml.Node, int]]


def read(file: Path, _: ImportContext) -> ImportPlan:
    """Raises UsageError for what is no config.yml."""
    plan = ImportPlan()
    root = read_yaml_mapping(file, "gpumonitor", _LOOK)[0]
    fields = {str(key.value): (value, key.start_mark.line + 1) for key, value in root.value}
    hosts = fields.pop("hosts", None)
    if hosts is None or not isinstance(hosts[0], yaml.SequenceNode):
        raise UsageError(f"{file} has no list `hosts`: it is no config.yml of gpumonitor.", _LOOK)
    numbers = _read_numbers(fields, plan)
    reach = {"port": int(numbers["rpc_port"])} if "rpc_port" in numbers else {}
    add_hosts(plan, _words(hosts[0]), "gpumonitor", **reach)
    plan.settings = _write_settings(numbers)
    return plan


def _read_numbers(fields: Named, plan: ImportPlan) -> dict[str, float]:
    numbers = {}
    for name, (node, line) in fields.items():
        if name not in _NUMBERS:
            plan.leave(f"line {line}", f"{quote(name)} is no setting of gpumonitor")
            continue
        low, high = _NUMBERS[name]
        value = _parse(node)
        if value is None or not low <= value <= high:
            plan.leave(f"line {line}", f"{name} has to be a number from {low:g} to {high:g}")
            continue
        numbers[name] = value
    return numbers


def _parse(node: yaml.Node) -> float | None:
    try:
        return float(node.value) if isinstance(node, yaml.ScalarNode) else None
    except ValueError:
        return None


def _words(node: yaml.SequenceNode) -> Iterator[tuple[str, str]]:
    """A word that YAML takes for nothing or for yes and no stands for no host, though it could be the name of one."""
    for entry in node.value:
        is_word = isinstance(entry, yaml.ScalarNode) and not entry.tag.endswith((":null", ":bool"))
        yield f"line {entry.start_mark.line + 1}", entry.value if is_word else "[…]"


def _write_settings(numbers: dict[str, float]) -> str:
    lines = ["compat:", "  gpumonitor:"]
    lines += [f"    port: {numbers['rpc_port']:g}"] if "rpc_port" in numbers else []
    lines += [f"    deadline: {numbers['rpc_timeout']:g}s"] if "rpc_timeout" in numbers else []
    lines[1] += " {}" if len(lines) == 2 else ""
    if "web_port" in numbers:
        lines += [
            f"listen: :{numbers['web_port']:g}",
            "read: open  # everyone who can reach the hub can read; login: only users with an account",
        ]
    return "\n".join([*lines, _EMPTY]) + "\n"
