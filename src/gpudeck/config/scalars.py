"""One value of the file → one value of a type. What does not fit raises `Unfit`; the caller says where it stands."""

import math
import re
from collections.abc import Callable, Iterable

from msgspec import inspect

from gpudeck.config.values import parse_address, parse_duration, parse_size
from gpudeck.config.words import Number, Option, choices
from gpudeck.config.yaml_nodes import Scalar, resolve

_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]{0,25})")
_DECIMAL = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_INT64 = range(-(2**63), 2**63)


class Unfit(Exception):
    """The value is none of this type. `suggestion` says what to do about it, where that is known."""

    def __init__(self, suggestion: str = "") -> None:
        super().__init__(suggestion)
        self.suggestion = suggestion


def read_scalar(node: Scalar, option: Option) -> object:
    """The value as the option's type, its limits checked."""
    info = option.info
    if option.mark == "address" and isinstance(info, inspect.StructType):
        return _read_address(node, info)
    if isinstance(info, Number):
        return _limit(_NUMBER_READERS.get(option.mark, _read_number)(node, info), info)
    if isinstance(info, inspect.LiteralType | inspect.EnumType):
        return _read_choice(node, info)
    if isinstance(info, inspect.StrType):
        return _read_text(node, info)
    if isinstance(info, inspect.BoolType):
        return _read_bool(node)
    if isinstance(info, inspect.NoneType) and node.kind == "null":
        return None
    raise Unfit


def nearest(name: str, names: Iterable[str]) -> str:
    """The known name that the given one was probably meant to be, or nothing."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    plain = {known.lower().replace("-", "_"): known for known in names}
    matches = difflib.get_close_matches(name[:64].lower().replace("-", "_"), plain, n=1)
    return plain[matches[0]] if matches else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The nearest known name as a suggestion, or nothing."""
    match = nearest(name, names)
    return f"did you mean {match}?" if match else ""


def _read_address(node: Scalar, info: inspect.StructType) -> object:
    if node.kind == "int":
        raise Unfit("write the host before the port")
    try:
        host, port = parse_address(node.text)
    except ValueError as error:
        raise Unfit(_suggest_address(node.text)) from error
    return info.cls(host, port)


def _suggest_address(text: str) -> str:
    if "://" in text:
        return "leave out the scheme and the path"
    return "put an IPv6 address in brackets" if text.count(":") > 2 else ""


def _read_duration(node: Scalar, info: Number) -> float:
    seconds = _parse(parse_duration, node)
    if isinstance(info, inspect.FloatType):
        return seconds
    if not seconds.is_integer():
        raise Unfit("write whole seconds")
    return int(seconds)


def _read_size(node: Scalar, info: Number) -> float:
    size_bytes = _parse(parse_size, node)
    return size_bytes if isinstance(info, inspect.IntType) else float(size_bytes)


def _parse(parse: Callable[[str], float], node: Scalar) -> float:
    try:
        return parse(node.text)
    except ValueError as error:
        raise Unfit from error


def _read_number(node: Scalar, info: Number) -> float:
    if node.kind == "text":
        return _read_number_in_text(node, info)
    if node.kind == "int":
        whole = _read_whole(node.text)
        return whole if isinstance(info, inspect.IntType) else float(whole)
    if node.kind != "float" or isinstance(info, inspect.IntType):
        raise Unfit
    return _read_decimal(node.text)


def _read_number_in_text(node: Scalar, info: Number) -> float:
    """`1e3` is a number to everybody but YAML 1.1; a number in quotes is one that should lose them."""
    if resolve(node.text) in {"int", "float"}:
        raise Unfit("leave out the quotes")
    if isinstance(info, inspect.IntType):
        raise Unfit
    return _read_decimal(node.text)


def _read_whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise Unfit(_suggest_whole(text.lstrip("+-")))
    whole = int(text.replace("_", ""))
    if whole not in _INT64:
        raise Unfit("it has to fit into 64 bits")
    return whole


def _suggest_whole(digits: str) -> str:
    """YAML 1.1 reads `010` as 8: whichever was meant, it is written in another way."""
    if not digits.startswith("0"):
        return "it has to fit into 64 bits"
    return "leave out the leading zero" if digits.isdecimal() else "write it as a decimal number"


def _read_decimal(text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise Unfit
    number = float(text.replace("_", ""))
    if not math.isfinite(number):
        raise Unfit
    return number


def _limit(number: float, info: Number) -> float:
    kept = (
        (info.ge is None or number >= info.ge)
        and (info.gt is None or number > info.gt)
        and (info.le is None or number <= info.le)
        and (info.lt is None or number < info.lt)
        and (info.multiple_of is None or number % info.multiple_of == 0)
    )
    if not kept:
        raise Unfit
    return number


def _read_choice(node: Scalar, info: inspect.LiteralType | inspect.EnumType) -> object:
    """Names are compared as they are written, so that `on` and `no` can be names without quotes."""
    for choice in choices(info):
        if (choice is None and node.kind == "null") or (choice is not None and str(choice) == node.text):
            return choice if isinstance(info, inspect.LiteralType) else info.cls(choice)
    raise Unfit(did_you_mean(node.text, [str(choice) for choice in choices(info) if choice is not None]))


def _read_text(node: Scalar, info: inspect.StrType) -> str:
    if node.kind != "text":
        raise Unfit("put it in quotes" if node.text else "")
    too_short = len(node.text) < (info.min_length or 0)
    too_long = info.max_length is not None and len(node.text) > info.max_length
    if too_short or too_long or (info.pattern is not None and not re.search(info.pattern, node.text)):
        raise Unfit
    return node.text


def _read_bool(node: Scalar) -> bool:
    if node.kind != "bool":
        raise Unfit("leave out the quotes" if resolve(node.text) == "bool" else "")
    return node.text.lower() in {"true", "yes", "on"}


_NUMBER_READERS: dict[str, Callable[[Scalar, Number], float]] = {"duration": _read_duration, "size": _read_size}
