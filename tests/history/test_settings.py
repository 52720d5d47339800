import pytest

from gpudeck.history.settings import HistorySettings

GOOD = "https://metrics.example/insert/0/prometheus"


@pytest.mark.parametrize(
    "url",
    [
        "store.example",
        "ftp://store/x",
        "http://",
        "http://store:0/",
        "http://me:secret@store/",
        "http://[::1",
        f"{GOOD}#part",
    ],
)
@pytest.mark.parametrize("name", ["write_url", "read_url"])
def test_address_that_cannot_be_asked_is_a_mistake_and_no_password_is_told(name: str, url: str) -> None:
    with pytest.raises(ValueError, match=name) as wrong:
        HistorySettings(**({"kind": "prometheus", "write_url": GOOD, "read_url": GOOD} | {name: url}))
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("url", [GOOD, "http://127.0.0.1:8428", "http://[::1]:9090/"])
def test_address_of_a_store_is_taken(url: str) -> None:
    assert HistorySettings(kind="prometheus", write_url=url, read_url=url).write_url == url
