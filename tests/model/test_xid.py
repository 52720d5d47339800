"""What XIDs mean: which ones page somebody, which ones are a program's own fault."""

import pytest

from gpudeck.model.gpu_state import XIDS, find_xid


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120])
def test_hardware_that_cannot_be_trusted_is_critical(code: int) -> None:
    assert find_xid(code).kind == "critical"


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_faults_of_programs_are_theirs(code: int) -> None:
    assert find_xid(code).kind == "application"


@pytest.mark.parametrize("code", [0, 63, 94, 9999])
def test_everything_else_is_a_warning(code: int) -> None:
    assert find_xid(code).kind == "warning"


@pytest.mark.parametrize("code", [*XIDS, 9999])
def test_every_code_has_words_and_a_next_step(code: int) -> None:
    xid = find_xid(code)
    assert xid.text
    assert not xid.text.endswith(".")
    assert xid.action.endswith(".")
