"""What is made from the code is up to date."""

import pytest

from generated import GENERATED, ROOT


@pytest.mark.parametrize("name", GENERATED)
def test_generated_files_are_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == GENERATED[name](), "run: make generated"
