import pytest

from gpudeck.model.address import check_hub_url
from gpudeck.model.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("http://hub:8042/", "http://hub:8042"), (" https://lab.example/gpus/ ", "https://lab.example/gpus")],
)
def test_an_address_is_taken_without_its_last_slash(text: str, expected: str) -> None:
    assert check_hub_url(text) == expected


@pytest.mark.parametrize("text", ["", "ftp://hub", "http://", "http://hub:99999", "http://hub/?a=1", "http://[::1"])
def test_anything_else_is_refused_with_the_next_step(text: str) -> None:
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:8042"):
        check_hub_url(text)
