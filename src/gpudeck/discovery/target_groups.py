"""Lists of hosts as Prometheus writes them: `[{"targets": ["gpu01:9400"], "labels": {"rack": "b3"}}]`.

Labels that begin with two underscores are Prometheus' own: `__scheme__` and `__metrics_path__` say how a target is
reached, the others are left out.
"""

from collections.abc import Iterator
from typing import Literal

from gpudeck.discovery.addresses import Place, read_place
from gpudeck.discovery.base import Findings
from gpudeck.discovery.labels import bound_labels
from gpudeck.discovery.ranges import expand, quote
from gpudeck.model.target import Target, Via


def read_groups(groups: object, origin: str, via: Via, findings: Findings, file: str = "") -> None:
    """Put the hosts of decoded JSON or YAML into `findings`. Raises ValueError for what is no list of groups.

    A target or a group that makes no sense costs itself only. `file` is where it stands, if that is not the origin.
    """
    if not isinstance(groups, list):
        raise ValueError("it is no list of groups of targets")  # noqa: TRY004 - a value from outside
    for number, group in enumerate(groups, 1):
        place = f"{file or origin}, group {number}"
        if findings.is_full:
            findings.tell_full(place)
            return
        try:
            _read_group(group, origin, via, findings, place)
        except ValueError as error:
            findings.tell(f"{place}: {error}.")


def _read_group(group: object, origin: str, via: Via, findings: Findings, place: str) -> None:
    if not isinstance(group, dict):
        raise ValueError("it is no mapping with targets")  # noqa: TRY004 - a value from outside
    targets, labels = group.get("targets"), group.get("labels") or {}
    if not isinstance(targets, list) or not isinstance(labels, dict):
        raise ValueError("its targets are no list, or its labels no mapping")  # noqa: TRY004 - a value from outside
    shown, left_out = bound_labels({name: value for name, value in labels.items() if not str(name).startswith("__")})
    if left_out:
        findings.tell(f"{place}: {left_out}.")
    scheme, path = _scheme_of(labels), _path_of(labels)
    for where in _places(targets, findings, place):
        if findings.is_full:
            findings.tell_full(place)
            return
        target = Target(
            name=where.host,
            via=via,
            address=where.address,
            port=where.port,
            scheme=scheme,
            path=path,
            labels=shown,
            origin=origin,
        )
        findings.add([target], place)


def _places(targets: list[object], findings: Findings, place: str) -> Iterator[Place]:
    """Where the targets are; brackets mean nothing but IPv6 here, as in Prometheus."""
    for text in targets:
        try:
            where = read_place(text if isinstance(text, str) else "")
            if [where.host] != expand(where.host) or where.user:
                raise ValueError(f"{quote(str(text))} is no host and port")  # noqa: TRY301 - told as the others are
        except ValueError as error:
            findings.tell(f"{place}: {error}.")
        else:
            yield where


def _scheme_of(labels: dict[object, object]) -> Literal["http", "https"]:
    scheme = labels.get("__scheme__", "http")
    if scheme == "https":
        return "https"
    if scheme != "http":
        raise ValueError("its __scheme__ is neither http nor https")
    return "http"


def _path_of(labels: dict[object, object]) -> str | None:
    path = labels.get("__metrics_path__")
    if path is not None and not (isinstance(path, str) and path.startswith("/") and path.isprintable()):
        raise ValueError("its __metrics_path__ is no path that begins with /")
    return path
