"""docs/verdicts.md: the table has the rules as they are."""

from pathlib import Path

from gpudeck.history.verdict_rules import RULES

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


def test_the_table_has_every_rule_in_its_order() -> None:
    rows = [
        tuple(cell.strip().strip("*`") for cell in line.strip("|").split("|"))
        for line in PAGE.read_text().splitlines()
        if line.startswith(("| `", "| **`"))
    ]
    cells = [(rule.name, rule.text, rule.threshold, rule.needs, rule.fix) for rule in RULES]
    assert [row for row in rows if len(row) == 5] == cells


def test_what_makes_a_run_poor_is_bold() -> None:
    text = PAGE.read_text()
    assert [rule.name for rule in RULES if f"| **`{rule.name}`** |" in text] == [
        rule.name for rule in RULES if rule.is_major
    ]
