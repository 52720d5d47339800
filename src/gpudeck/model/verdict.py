"""The verdict on a run or job, as the API, the page, the terminal and the bot show it (docs/verdicts.md)."""

from typing import Final, Literal

from msgspec import Struct, field

Rating = Literal["good", "could_be_better", "poor", "unknown"]
MOST_SUGGESTIONS: Final = 3
RATING_WORDS: Final[dict[Rating, str]] = {
    "good": "good",
    "could_be_better": "could be better",
    "poor": "poor",
    "unknown": "unknown",
}


class Suggestion(Struct, frozen=True):
    """`rule` is the word for programs, `text` what it found. `evidence` are the figures, `threshold` is from where on
    the rule fires, `fix` what to do."""

    rule: str
    text: str
    evidence: str
    threshold: str
    fix: str


class RunVerdict(Struct, frozen=True):
    """`text` is one sentence. `reason` is why the rating is unknown, null where it is known. `suggestions` are at most
    three, the most important first."""

    rating: Rating
    text: str
    reason: str | None = None
    suggestions: list[Suggestion] = field(default_factory=list)
