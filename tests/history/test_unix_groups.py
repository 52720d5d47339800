"""Groups of the logins that this machine knows."""

import grp
import os
import pwd

import pytest

from gpudeck.history.usage import unix_group


def test_a_login_has_its_primary_group() -> None:
    login = next(one for one in pwd.getpwall() if grp.getgrgid(one.pw_gid).gr_name != one.pw_name)
    assert unix_group(login.pw_name) == grp.getgrgid(login.pw_gid).gr_name


def test_a_group_of_the_logins_own_name_is_none() -> None:
    private = next(one for one in pwd.getpwall() if grp.getgrgid(one.pw_gid).gr_name == one.pw_name)
    assert unix_group(private.pw_name) is None


@pytest.mark.parametrize("login", ["nobody-has-this-login", "a\x00b", "", "-" * 5000, f"uid {os.getuid()}"])
def test_a_login_that_is_not_known_here_has_no_group(login: str) -> None:
    assert unix_group(login) is None
