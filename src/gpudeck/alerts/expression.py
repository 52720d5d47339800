"""The conditions of an operator's own alert rules, and the texts of their alerts.

`utilization_percent < 5 and memory_used_bytes > 10GiB for 2h`, `GPU {gpu} of {host} holds {memory_used_bytes}`

    text → tokens → `parse_expression` → Expression, which is evaluated over columns, one GPU, or a past

The grammar: `or`, `and`, `not`, comparisons (< <= > >= == !=, `like` for text), + - * /, numbers with units, columns of
the catalog, and those of the host as `host.cpu_percent`. There is nothing else, so that an expression can do no
harm. Pure, and without numpy: an agent checks the configuration too.

A result is a pair: what is certainly true, and what is certainly false. Where it is neither, it is unknown.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from math import isfinite
from operator import add, eq, ge, gt, le, lt, mul, sub
from typing import Any, Final, NamedTuple, Protocol

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.gpu_state import AVAILABILITIES
from gpudeck.model.text import clean, parse_bytes, parse_memory, propose, show_amount, show_span
from gpudeck.model.times import parse_duration

HOST_PREFIX: Final = "host."
COLUMNS: Final[dict[str, Metric]] = {
    **GPU_METRICS,
    **{f"{HOST_PREFIX}{name}": metric for name, metric in HOST_METRICS.items()},
}
"""The numbers that a rule may compare, by name."""
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "availability": tuple(word for word in AVAILABILITIES if word != "unknown"),
    "health": ("ok", "warning", "critical"),
    "model": (),
}
"""The texts that it may compare, all of GPUs, and what they can be; nothing for any text."""
MAX_CHARACTERS: Final = 1000
_MAX_DEPTH = 40
_ANY: Final = "any"
"""The unit of a product or a ratio, which may be compared with everything."""
_SIMPLE_UNITS: Final = {
    "%": ("percent", 1.0),
    "°C": ("celsius", 1.0),
    "C": ("celsius", 1.0),
    "W": ("watts", 1.0),
    "kW": ("watts", 1e3),
    "MHz": ("megahertz", 1.0),
    "GHz": ("megahertz", 1e3),
    "J": ("joules", 1.0),
    "kJ": ("joules", 1e3),
    "MJ": ("joules", 1e6),
    "kWh": ("joules", 3.6e6),
}
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+(?![A-Za-z]))?)(?P<unit>%|°C|[A-Za-z]+(?:/s\b)?)?
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?)
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<sign><=|>=|==|!=|[<>()+*/=-])
    )""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset(("and", "or", "not", "like", "for"))
_COMPARISONS: Final = frozenset(("<", "<=", ">", ">=", "==", "!="))
Truth = tuple[Any, Any]
"""Whether it is certainly true, and whether it is certainly false: two bools, or two columns of them."""


class ExpressionError(ValueError):
    """`start` and `end` are the characters of `text` that it is about. `detail` shows them."""

    def __init__(self, message: str, text: str, start: int, end: int) -> None:
        super().__init__(clean(" ".join(message.split())))
        self.start, self.end = start, end
        shown = clean("".join(" " if char.isspace() else char for char in text))
        self.detail = f"{shown}\n{' ' * start}{'^' * max(1, end - start)}"


class Values(Protocol):
    """The values for an expression: columns of many GPUs, or those of one GPU."""

    def number(self, column: str) -> Any:
        """A float or a column of them; NaN where it is unknown."""
        ...

    def match(self, column: str, is_wanted: Callable[[str], bool]) -> Truth:
        """Of a text, whether it is wanted."""
        ...


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int
    value: float = 0.0
    unit: str = ""


class _Node(NamedTuple):
    """`kind` is number, text or condition. `unit` is that of a number, "" for one without. `column` is the name of one
    that is nothing but a column."""

    kind: str
    evaluate: Callable[[Values], Any]
    start: int
    end: int
    unit: str = ""
    column: str = ""


class Expression(NamedTuple):
    """`seconds` is what follows `for`, None without it. `columns` are all that it compares, in their order."""

    text: str
    columns: tuple[str, ...]
    seconds: float | None
    evaluate: Callable[[Values], Truth]

    @property
    def is_of_host(self) -> bool:
        """Whether it says nothing of GPUs."""
        return all(column.startswith(HOST_PREFIX) for column in self.columns)


@lru_cache(1024)
def parse_expression(text: str) -> Expression:
    """Raises ExpressionError."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > MAX_CHARACTERS:
            raise self._error(f"more than {MAX_CHARACTERS} characters", 0, 1)
        self._tokens = list(self._read())
        self._at = 0
        self._depth = 0
        self._columns: dict[str, None] = {}

    def parse(self) -> Expression:
        node = self._read_or()
        condition = self._as_condition(node)
        seconds = self._read_span() if self._take("for") else None
        if (token := self._token).kind != "end":
            raise self._error(f"expected and, or, for or the end, found {token.text}", token.start, token.end)
        if not self._columns:
            raise self._error("it compares no column", node.start, node.end)
        return Expression(self._text, tuple(self._columns), seconds, condition)

    def _read(self) -> Iterator[_Token]:
        position, text = 0, self._text
        end = len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if found is None:
                start = position + len(text[position:]) - len(text[position:].lstrip())
                is_open = text[start] in "\"'"
                said = "a quote that is never closed" if is_open else f"{text[start]} means nothing here"
                raise self._error(said, start, end if is_open else start + 1)
            kind = found.lastgroup or ""
            start, position = found.start("number" if kind == "unit" else kind), found.end()
            token = _Token(kind, text[start:position], start, position)
            if found["number"]:
                yield self._read_number(token, found["number"], found["unit"] or "")
            elif kind == "text":
                yield token._replace(text=token.text[1:-1])
            elif kind == "name" and token.text in _KEYWORDS:
                yield token._replace(kind="sign")
            else:
                yield token
        yield _Token("end", "the end", end, end + 1)

    def _read_number(self, token: _Token, number: str, unit: str) -> _Token:
        value, name = float(number), ""
        if not isfinite(value):
            raise self._error("the number is too large", token.start, token.end)
        if unit in _SIMPLE_UNITS:
            name, factor = _SIMPLE_UNITS[unit]
            value *= factor
        elif unit:
            try:
                name, value = _read_unit(number, unit)
            except ValueError:
                said = f"there is no unit {unit}; there are GiB, %, °C, W, MHz, MB/s, s, m, h, d"
                raise self._error(said, token.end - len(unit), token.end) from None
        return token._replace(kind="number", value=value, unit=name)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *signs: str) -> str:
        """The next sign, if it is one of these."""
        token = self._token
        if token.kind == "sign" and token.text in signs:
            self._at += 1
            return token.text
        return ""

    def _read_chain(
        self, signs: Sequence[str], read: Callable[[], _Node], combine: Callable[[str, _Node, _Node], _Node]
    ) -> _Node:
        left = read()
        while sign := self._take(*signs):
            left = combine(sign, left, read())
        return left

    def _read_or(self) -> _Node:
        return self._read_chain(("or",), self._read_and, self._join)

    def _read_and(self) -> _Node:
        return self._read_chain(("and",), self._read_not, self._join)

    def _join(self, sign: str, left: _Node, right: _Node) -> _Node:
        first, second = self._as_condition(left), self._as_condition(right)

        def join(values: Values) -> Truth:
            (a, not_a), (b, not_b) = first(values), second(values)
            return (a & b, not_a | not_b) if sign == "and" else (a | b, not_a & not_b)

        return _Node("condition", join, left.start, right.end)

    def _read_not(self) -> _Node:
        start = self._token.start
        if not self._take("not"):
            return self._read_comparison()
        self._enter(start)
        inner = self._read_not()
        self._depth -= 1
        condition = self._as_condition(inner)
        return _Node("condition", lambda values: condition(values)[::-1], start, inner.end)

    def _read_comparison(self) -> _Node:
        left = self._read_sum()
        token = self._token
        if self._take("="):
            raise self._error("one = means nothing; write ==", token.start, token.end)
        sign = self._take(*_COMPARISONS, "like")
        if not sign:
            return left
        if left.kind == "text" or sign == "like":
            return self._compare_text(left, sign, token)
        right = self._read_sum()
        self._check_numbers(left, right, "compared")
        self._check_memory(left, right)
        if (more := self._token).kind == "sign" and more.text in _COMPARISONS:
            raise self._error("two comparisons in a row; join them with and", more.start, more.end)
        return _Node("condition", _compare(sign, left.evaluate, right.evaluate), left.start, right.end)

    def _compare_text(self, left: _Node, sign: str, token: _Token) -> _Node:
        if left.kind != "text":
            raise self._error(f"like compares texts: {', '.join(WORDS)}", left.start, left.end)
        if sign not in {"==", "!=", "like"}:
            raise self._error(f"{left.column} is compared with ==, != or like", token.start, token.end)
        right = self._token
        if right.kind not in {"text", "name"}:
            raise self._error(f"expected a text, found {right.text}", right.start, right.end)
        self._at += 1
        wanted, known = right.text, WORDS[left.column]
        if known and sign != "like" and wanted not in known:
            if wanted == "unknown":
                raise self._error("what is unknown never fires", right.start, right.end)
            said = f"{left.column} is never {wanted}; {propose(wanted, known)}"
            raise self._error(said, right.start, right.end)
        pattern = wanted.lower()

        def is_wanted(word: str) -> bool:
            return fnmatchcase(word.lower(), pattern) if sign == "like" else word == wanted

        def compare(values: Values) -> Truth:
            truth = values.match(left.column, is_wanted)
            return truth[::-1] if sign == "!=" else truth

        return _Node("condition", compare, left.start, right.end)

    def _read_sum(self) -> _Node:
        return self._read_chain(("+", "-"), self._read_product, self._compute)

    def _read_product(self) -> _Node:
        return self._read_chain(("*", "/"), self._read_factor, self._compute)

    def _compute(self, sign: str, left: _Node, right: _Node) -> _Node:
        self._check_numbers(left, right, "added" if sign in "+-" else "")
        has_unit = sign in "+-" or not right.unit or (sign == "*" and not left.unit)
        first, second, compute = left.evaluate, right.evaluate, _COMPUTED[sign]

        def evaluate(values: Values) -> Any:
            result = compute(first(values), second(values))
            # NaN if it is infinite, as after a division by 0.
            return result + (result - result)

        return _Node("number", evaluate, left.start, right.end, (left.unit or right.unit) if has_unit else _ANY)

    def _read_factor(self) -> _Node:
        token = self._token
        if self._take("-"):
            self._enter(token.start)
            inner = self._read_factor()
            self._depth -= 1
            self._check_numbers(inner, inner, "")
            return inner._replace(evaluate=lambda values: -inner.evaluate(values), start=token.start, column="")
        if self._take("("):
            self._enter(token.start)
            inner = self._read_or()
            self._depth -= 1
            end = self._token.end
            if not self._take(")"):
                raise self._error("a bracket that is never closed", token.start, token.end)
            return inner._replace(start=token.start, end=end, column="")
        if token.kind == "number":
            self._at += 1
            value = token.value
            return _Node("number", lambda _: value, token.start, token.end, token.unit)
        if token.kind == "name":
            self._at += 1
            return self._read_column(token)
        raise self._error(f"expected a column or a number, found {token.text}", token.start, token.end)

    def _read_column(self, token: _Token) -> _Node:
        name = token.text
        if name not in COLUMNS and name not in WORDS:
            if f"{HOST_PREFIX}{name}" in COLUMNS:
                hint = f"of the host there is {HOST_PREFIX}{name}"
            else:
                hint = propose(name, [*COLUMNS, *WORDS])
            hint = hint if len(hint) < 200 else "docs/metrics.md lists them"
            raise self._error(f"there is no column {name}; {hint}", token.start, token.end)
        self._columns[name] = None
        if name in WORDS:
            return _Node("text", lambda _: None, token.start, token.end, column=name)
        unit = COLUMNS[name].unit
        return _Node("number", lambda values: values.number(name), token.start, token.end, unit, name)

    def _read_span(self) -> float:
        """The duration after `for`, which ends the expression."""
        start = self._token.start
        try:
            seconds = parse_duration(self._text[start:])
        except ValueError:
            raise self._error("expected a duration such as 10m or 1h 30m", start, len(self._text.rstrip())) from None
        self._at = len(self._tokens) - 1
        return seconds

    def _as_condition(self, node: _Node) -> Callable[[Values], Truth]:
        if node.kind == "condition":
            return node.evaluate
        if node.kind == "number" and node.unit == "flag" and node.column:
            return _compare(">", node.evaluate, lambda _: 0.0)
        name = node.column or "this number"
        example = "== free" if node.column == "availability" else "== …" if node.kind == "text" else "> …"
        raise self._error(f"{name} is no condition; compare it: {example}", node.start, node.end)

    def _check_numbers(self, left: _Node, right: _Node, verb: str) -> None:
        """Both are numbers, and of one unit where they are to be `verb`."""
        for node in (left, right):
            if node.kind != "number":
                raise self._error(f"{node.column or 'a condition'} is no number", node.start, node.end)
        if verb and left.unit and right.unit and left.unit != right.unit and _ANY not in {left.unit, right.unit}:
            raise self._error(f"{left.unit} and {right.unit} cannot be {verb}", left.start, right.end)

    def _check_memory(self, left: _Node, right: _Node) -> None:
        """Bytes are compared with a number that says of what it is: 40 may be meant as GiB."""
        for one, other in ((left, right), (right, left)):
            words = self._text[one.start : one.end]
            if not one.unit and other.unit == "bytes" and re.fullmatch(r"[0-9.]+", words) and float(words):
                raise self._error(f"{words} what? Write {words}GiB", one.start, one.end)

    def _enter(self, start: int) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"nested more than {_MAX_DEPTH} deep", start, start + 1)

    def _error(self, message: str, start: int, end: int) -> ExpressionError:
        return ExpressionError(message, self._text, start, end)


def _read_unit(number: str, unit: str) -> tuple[str, float]:
    """Raises ValueError for what is none."""
    if unit.endswith("/s"):
        return "bytes_per_second", float(parse_bytes(f"{number}{unit[:-2]}"))
    if unit in {"s", "m", "h", "d"}:
        return "seconds", parse_duration(f"{number}{unit}")
    return "bytes", float(parse_memory(f"{number}{unit}"))


def _divide(left: Any, right: Any) -> Any:
    try:
        return left / right
    except ZeroDivisionError:
        return float("nan")


_COMPUTED: Final = {"+": add, "-": sub, "*": mul, "/": _divide}


def _differs(first: Any, second: Any) -> Any:
    return (first < second) | (first > second)


_COMPARED: Final[dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]]] = {
    "<": (lt, ge),
    "<=": (le, gt),
    ">": (gt, le),
    ">=": (ge, lt),
    "==": (eq, _differs),
    "!=": (_differs, eq),
}
"""Each comparison and its opposite. With NaN both are false."""


def _compare(sign: str, left: Callable[[Values], Any], right: Callable[[Values], Any]) -> Callable[[Values], Truth]:
    is_true, is_false = _COMPARED[sign]

    def compare(values: Values) -> Truth:
        first, second = left(values), right(values)
        return is_true(first, second), is_false(first, second)

    return compare


PLACES: Final = ("host", "gpu", "model", "users")
"""Fields of a text that are no columns. `gpu` is the index."""
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_SIGNS: Final = {
    "percent": " %",
    "celsius": " °C",
    "watts": " W",
    "megahertz": " MHz",
    "joules": " J",
    **dict.fromkeys(("count", "load", "state"), ""),
}
"""Other units are written out."""


def check_text(text: str, expression: Expression) -> None:
    """Raises ValueError, which names `text`."""
    known = [*COLUMNS, *PLACES] if not expression.is_of_host else [*(one for one in COLUMNS if "." in one), "host"]
    for name in _FIELD.findall(text):
        if name not in known:
            hint = propose(name, known)
            hint = hint if hint.endswith("?") else f"fields are columns and {', '.join(PLACES)}"
            raise ValueError(f"text has no field {name}; {hint}")
    if re.search(r"[{}]", _FIELD.sub("", text)):
        raise ValueError("text has a brace without its partner; write fields as {host}")


def fill_text(text: str, find: Callable[[str], str | float | None]) -> str:
    """`find` returns the value of a field."""
    return _FIELD.sub(lambda found: _show(found[1], find(found[1])), text)


def default_text(expression: Expression) -> str:
    """The place and the compared columns: `GPU 3 of gpu-01: utilization 2 %, memory used 31 GiB`."""
    place = "{host}" if expression.is_of_host else "GPU {gpu} of {host}"
    return f"{place}: {', '.join(f'{_name(column)} {{{column}}}' for column in expression.columns)}"


def _name(column: str) -> str:
    label = COLUMNS[column].label if column in COLUMNS else column
    return label if label[:2].isupper() else label[:1].lower() + label[1:]


def _show(field: str, value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or "unknown"
    unit = COLUMNS[field].unit if field in COLUMNS else ""
    writers: dict[str, Callable[[float], str]] = {
        "bytes": lambda amount: show_amount(int(amount)),
        "bytes_per_second": lambda rate: f"{rate / 1e6:.0f} MB/s",
        "seconds": show_span,
        "flag": lambda flag: "yes" if flag else "no",
        "": lambda number: f"{number:,g}",
    }
    return writers[unit](value) if unit in writers else f"{value:,.0f}{_SIGNS.get(unit, f' {unit}')}"
