"""Claims of a provider become an account: its name, role and group, and why."""

from typing import Any

import pytest

from gpudeck.auth.claims import find_claim, map_user, match_group, merge_claims, read_groups
from gpudeck.auth.settings import MappingSettings
from gpudeck.model.errors import Refused

ADA = {"sub": "1", "preferred_username": "ada", "email": "ada@example.org", "groups": ["gpu-admins", "lab-vision"]}
MAPPING = MappingSettings(
    roles={"admin": ["gpu-admins"], "user": ["gpu-*"], "viewer": ["staff"]}, default_role=None, groups={"lab-*": "*"}
)


def why(claims: dict[str, Any], mapping: MappingSettings, what: str) -> str:
    return next(reason.why for reason in map_user(claims, mapping).reasons if reason.what == what)


def test_the_highest_role_of_all_groups_counts() -> None:
    user = map_user(ADA, MAPPING)
    assert (user.name, user.role, user.group, user.mail) == ("ada", "admin", "vision", "ada@example.org")
    assert map_user({**ADA, "groups": ["staff", "gpu-users"]}, MAPPING).role == "user"
    assert why(ADA, MAPPING, "role") == "the group gpu-admins matches gpu-admins"


def test_a_missing_groups_claim_keeps_the_role_and_an_empty_one_does_not() -> None:
    without = {name: value for name, value in ADA.items() if name != "groups"}
    assert map_user(without, MAPPING).role is None
    assert "keeps its role" in why(without, MAPPING, "role")
    with pytest.raises(Refused, match="none of the groups"):
        map_user({**ADA, "groups": []}, MAPPING)


@pytest.mark.parametrize("groups", [{"a": 1}, [1, "gpu-admins"], 7, None, ["g"] * 5_001])
def test_groups_that_are_no_list_of_texts_are_missing(groups: object) -> None:
    user = map_user({**ADA, "groups": groups}, MAPPING)
    assert (user.groups, user.role, user.group) == (None, None, None)


@pytest.mark.parametrize("sign", [{"_claim_names": {"groups": "src1"}}, {"hasgroups": "true"}])
def test_too_many_groups_of_entra_are_explained(sign: dict[str, object]) -> None:
    claims = {"preferred_username": "ada@example.org", **sign}
    assert map_user(claims, MAPPING).role is None
    assert "more than 200" in why(claims, MAPPING, "groups")


def test_names_come_from_a_claim_and_a_pattern() -> None:
    of_mail = MappingSettings(name_claim="email", name_pattern=r"(.+)@example\.org", trust_email=True)
    assert map_user(ADA, of_mail).name == "ada"
    assert map_user({"preferred_username": "Ada@example.org"}, MappingSettings()).name == "ada"
    with pytest.raises(Refused, match="gives no name"):
        map_user({**ADA, "email": "ada@evil.example"}, of_mail)
    with pytest.raises(Refused, match="not verified"):
        map_user({**ADA, "email_verified": False}, of_mail)
    with pytest.raises(Refused, match="does not send the claim"):
        map_user({"sub": "1"}, MappingSettings())


@pytest.mark.parametrize("name", ["", "a b", "ada\n", "../x", "\u212a", "x" * 65, "ada\0"])
def test_a_name_that_no_account_can_have_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        map_user({"preferred_username": name}, MappingSettings())


def test_named_admins_need_no_group() -> None:
    assert map_user({"preferred_username": "ada"}, MappingSettings(admins=["ada"])).role == "admin"


def test_claims_of_id_token_and_userinfo_are_united() -> None:
    merged = merge_claims({"sub": "1", "groups": ["a"], "name": "Ada"}, {"groups": ["b", "a"], "name": "Eve", "x": 1})
    assert merged == {"sub": "1", "groups": ["a", "b"], "name": "Ada", "x": 1}


def test_a_dot_leads_into_an_object_unless_a_claim_is_called_so() -> None:
    claims = {"realm_access": {"roles": ["a"]}, "https://example.org/groups": ["b"]}
    assert find_claim(claims, "realm_access.roles") == ["a"]
    assert read_groups(claims, "https://example.org/groups") == ("b",)
    assert find_claim(claims, "realm_access.roles.more") is None


def test_patterns_match_all_of_a_group_and_nothing_else_is_special() -> None:
    assert match_group("lab-*", "lab-vision") == "vision"
    assert match_group("a.b", "axb") is None
    assert match_group("gpu", "gpu-admins") is None
    assert match_group("cn=*,ou=groups", "cn=x,ou=groups") == "x"


def test_a_mail_address_names_an_account_only_if_it_is_verified_or_the_provider_is_trusted_with_it() -> None:
    of_mail = MappingSettings(name_claim="email")
    assert map_user({**ADA, "email_verified": True}, of_mail).name == "ada"
    assert map_user({**ADA, "email_verified": "true"}, of_mail).name == "ada"
    with pytest.raises(Refused, match="does not send email_verified, and `trust_email` is not set"):
        map_user(ADA, of_mail)
    trusting = map_user(ADA, MappingSettings(name_claim="email", trust_email=True))
    assert trusting.name == "ada"
    assert "does not say that it is verified, but `trust_email` is set" in trusting.reasons[0].why
    with pytest.raises(Refused, match="says that it is not verified"):
        map_user({**ADA, "email_verified": False}, MappingSettings(name_claim="email", trust_email=True))


@pytest.mark.parametrize("claim", ["mail", "Mail", "rfc822Mailbox"])
def test_an_address_in_another_claim_needs_trust_as_well(claim: str) -> None:
    claims = {claim: "ada@example.org"}
    with pytest.raises(Refused, match="`trust_email` is not set"):
        map_user(claims, MappingSettings(name_claim=claim))
    assert map_user(claims, MappingSettings(name_claim=claim, trust_email=True)).name == "ada"


def test_a_mail_address_that_is_not_verified_is_not_used() -> None:
    assert map_user({**ADA, "email_verified": False}, MAPPING).mail is None
    assert map_user({**ADA, "email": "ada@example.org\nBcc: x@y"}, MAPPING).mail is None
