"""Digests as settings, the API and the command line know them, and numbers as a user's language writes them."""

from typing import Final, Literal

from msgspec import Struct, field

Frequency = Literal["off", "week", "month"]
NumberFormat = Literal[
    "en", "da", "de", "de-CH", "es", "fi", "fr", "it", "ja", "ko", "nb", "nl", "pl", "pt", "sv", "zh"
]
_MARKS: Final = {
    **dict.fromkeys(("da", "de", "es", "it", "nl", "pt"), (".", ",")),
    **dict.fromkeys(("fi", "nb", "pl", "sv"), ("\u00a0", ",")),
    "de-CH": ("\u2019", "."),
    "fr": ("\u202f", ","),
}


def show_number(value: float, numbers: NumberFormat = "en", digits: int = 1) -> str:
    """With the marks of that language for thousands and decimals."""
    thousands, decimal = _MARKS.get(numbers, (",", "."))
    return f"{value:,.{digits}f}".translate({ord(","): thousands, ord("."): decimal})


class DigestPreview(Struct, frozen=True):
    """A digest as it would be sent. Times are Unix seconds: the period, and when it was due. `to` are the channels that
    it goes to; `not_sent` is why nothing is sent, null if it is."""

    account: str
    period: str
    start: float
    end: float
    due_at: float
    zone: str
    title: str
    text: str
    html: str
    to: list[str] = field(default_factory=list)
    not_sent: str | None = None
