"""Optional parts: tests/cli/test_extras.py has what commands say."""

import sys

import pytest

from gpudeck.model.errors import UsageError
from gpudeck.model.plugins import need_hub_python


def test_hub_on_an_old_python_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(UsageError, match=r"the hub needs Python 3\.11 or newer, and this is"):
        need_hub_python("the hub")
    monkeypatch.setattr(sys, "version_info", (3, 11, 0, "final", 0))
    need_hub_python("the hub")
