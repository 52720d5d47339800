"""The two lists that an admin of gpu-monitor keeps in its index.php: names of hosts, and short names of GPUs."""

import re

_ARRAY = r"\${}\s*=\s*(?:array\s*\(|\[)(.*?)(?:\)|\])\s*;"
_COMMENT = re.compile(r"""("(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?)|//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL)
_STRING = r"""(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)')"""
_PAIR = re.compile(rf"{_STRING}\s*=>\s*{_STRING}")


def read_names(text: str, variable: str) -> dict[str, str] | None:
    """The pairs of an array of strings, such as `$HOSTS = array("gpu1" => "Big one");`. None where there is none.
    Nothing is run: what is no string is passed over."""
    plain = _COMMENT.sub(lambda found: found[1] or "", text)
    found = re.search(_ARRAY.format(variable), plain, re.DOTALL)
    if found is None:
        return None
    pairs = _PAIR.findall(found[1])
    return {_unescape(one or other): _unescape(double or single) for one, other, double, single in pairs}


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
