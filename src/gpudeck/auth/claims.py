"""Maps what a provider says about a user (OIDC claims, LDAP attributes) to account name, role, group and mail address.

Pure: no network, no database. A claim that is missing changes nothing, in particular not the role of an account.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from gpudeck.auth.settings import ROLES, AccountRole, MappingSettings, read_mail, read_name
from gpudeck.model.errors import Refused
from gpudeck.model.text import clean

Claims = Mapping[str, object]
"""As in the JSON of a token; the attributes of an LDAP entry have the same form."""

MAX_GROUPS = 5_000
MAX_GROUP_LENGTH = 512
_SHOWN = 5
_MAIL_CLAIMS = frozenset({"email", "mail", "rfc822mailbox"})
"""The claim of OIDC, and the attributes of LDAP."""
_NAME_HINT = "An admin of this hub can set `name_claim` and `name_pattern`."
_MAIL_HINT = "Verify it there. If users cannot enter addresses there, an admin of this hub can set `trust_email`."
MISSING_HINT = "Ask the provider's administrator to send it, or correct `groups_claim`."
OVERAGE = (
    "Microsoft Entra sends no groups for users with more than 200 of them (the claim _claim_names stands in their "
    "place), so role and group stay as they were"
)
OVERAGE_HINT = (
    "In the app registration, choose `Groups assigned to the application` under Token configuration, or use app roles "
    "with `groups_claim: roles`."
)


class Reason(Struct, frozen=True):
    """Why a value was chosen, for the trial login and the audit log. `value` is empty if none was chosen."""

    what: Literal["name", "role", "group", "mail", "groups"]
    value: str
    why: str


class MappedUser(Struct, frozen=True):
    """A user of a provider, mapped to an account of gpudeck."""

    name: str
    """The name of the account."""
    role: AccountRole | None
    """None if an existing account keeps its role, because the provider sent no groups or assigns no roles."""
    role_if_new: AccountRole | None
    """The role of a new account if `role` is None. If both are None, no account is created."""
    groups: tuple[str, ...] | None
    """All groups that the provider sent; None if it did not send the claim."""
    group: str | None
    """The group in gpudeck, for usage reports and notifications."""
    mail: str | None
    reasons: tuple[Reason, ...]
    is_named_admin: bool = False
    """Whether the role comes from the setting `admins`."""


def merge_claims(id_token: Claims, userinfo: Claims) -> dict[str, object]:
    """Merges both. Lists are united; otherwise the value of the signed ID token takes precedence."""
    merged: dict[str, object] = dict(userinfo)
    for name, value in id_token.items():
        other = merged.get(name)
        if isinstance(value, list) and isinstance(other, list):
            merged[name] = [*value, *(one for one in other if one not in value)]
        else:
            merged[name] = value
    return merged


def map_user(claims: Claims, mapping: MappingSettings) -> MappedUser:
    """Raises Refused, in words for the user, where the claims name no account or nobody of those roles may log in."""
    name, why = _map_name(claims, mapping)
    groups = read_groups(claims, mapping.groups_claim)
    reasons = [Reason("name", name, why), _explain_groups(claims, groups, mapping)]
    role, why = _map_role(name, groups, mapping)
    if role is None and groups is not None and mapping.default_role is None and mapping.roles:
        raise Refused(f"{name} is in none of the groups that may log in.", "Ask an admin of this hub.")
    reasons.append(Reason("role", role or "", why))
    group, why = _map_group(groups, mapping)
    reasons.append(Reason("group", group or "", why))
    mail, why = _map_mail(claims)
    reasons.append(Reason("mail", mail or "", why))
    is_named = name in mapping.admins
    return MappedUser(name, role, mapping.default_role, groups, group, mail, tuple(reasons), is_named)


def find_claim(claims: Claims, path: str) -> object:
    """The claim of that name; a dot leads into an object (`realm_access.roles`). None where there is none."""
    if path in claims:
        return claims[path]
    found: object = claims
    for part in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def read_groups(claims: Claims, path: str) -> tuple[str, ...] | None:
    """None where the claim is missing or is no list of texts; an empty list is an answer."""
    found = find_claim(claims, path)
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, Sequence) or len(found) > MAX_GROUPS:
        return None
    groups = [group for group in found if isinstance(group, str)]
    if len(groups) < len(found):
        return None
    return tuple(dict.fromkeys(clean(group[:MAX_GROUP_LENGTH]) for group in groups))


def is_overage(claims: Claims, path: str) -> bool:
    """Whether Entra left out the groups because there are too many."""
    names = claims.get("_claim_names")
    return (isinstance(names, Mapping) and path in names) or claims.get("hasgroups") in {True, "true"}


def match_group(pattern: str, group: str) -> str | None:
    """What the first `*` of the pattern stands for, or all of the group where it has none; None: no match."""
    found = _compile(pattern).fullmatch(group)
    return None if found is None else found[1] if found.groups() else group


@functools.lru_cache(maxsize=1_000)
def _compile(pattern: str) -> "re.Pattern[str]":
    parts = [re.escape(part) for part in re.split(r"\*+", pattern)]
    return re.compile("(.*?)".join(parts), re.DOTALL)


def _map_name(claims: Claims, mapping: MappingSettings) -> tuple[str, str]:
    claim = mapping.name_claim
    value = find_claim(claims, claim)
    if not isinstance(value, str) or not value:
        raise Refused(f"the provider does not send the claim {claim}, which names the account.", _NAME_HINT)
    is_mail = claim.lower() in _MAIL_CLAIMS
    if is_mail and (why := _why_unverified(claims, trusts_missing=mapping.trust_email)):
        raise Refused(f"the mail address, which names the account, counts as unverified: {why}.", _MAIL_HINT)
    found = re.fullmatch(mapping.name_pattern, value, re.IGNORECASE) if len(value) <= MAX_GROUP_LENGTH else None
    taken = None if found is None else found[1] if found.groups() else found[0]
    name = read_name(taken or "")
    shown = clean(value[:80])
    if name is None:
        raise Refused(f"{shown!r} in the claim {claim} gives no name for an account.", _NAME_HINT)
    why = f"the claim {claim} is {shown}" + ("" if name == value else f"; name_pattern takes {name}")
    is_trusted = is_mail and claims.get("email_verified") is None
    return name, why + (
        "; the provider does not say that it is verified, but `trust_email` is set" if is_trusted else ""
    )


def _explain_groups(claims: Claims, groups: tuple[str, ...] | None, mapping: MappingSettings) -> Reason:
    if groups is not None:
        return Reason("groups", _show(groups), f"the claim {mapping.groups_claim}")
    if is_overage(claims, mapping.groups_claim):
        return Reason("groups", "", f"{OVERAGE}. {OVERAGE_HINT}")
    return Reason("groups", "", f"there is no list {mapping.groups_claim} among the claims. {MISSING_HINT}")


def _map_role(name: str, groups: tuple[str, ...] | None, mapping: MappingSettings) -> tuple[AccountRole | None, str]:
    if name in mapping.admins:
        return "admin", "the name is one of `admins`"
    if not mapping.roles:
        return None, "`roles` is empty: roles are given here, and new accounts get `default_role`"
    if groups is None:
        return None, "the provider sends no groups, so an existing account keeps its role"
    for role in reversed(ROLES):
        for pattern in mapping.roles.get(role, ()):
            for group in groups:
                if match_group(pattern, group) is not None:
                    return role, f"the group {group} matches {pattern}"
    return mapping.default_role, "no group matches a pattern of `roles`: this is `default_role`"


def _map_group(groups: tuple[str, ...] | None, mapping: MappingSettings) -> tuple[str | None, str]:
    """The first line of `groups` that fits counts."""
    for pattern, wanted in mapping.groups.items() if groups is not None else ():
        for group in groups or ():
            part = match_group(pattern, group)
            if part is not None:
                named = wanted.replace("*", part)[:64].strip()
                return (named or None), f"the group {group} matches {pattern}"
    return None, "no group matches a line of `groups`" if groups is not None else "the provider sends no groups"


def _why_unverified(claims: Claims, *, trusts_missing: bool) -> str:
    """Why the claim email may be another user's address; empty where it is not."""
    is_verified = claims.get("email_verified")
    if is_verified in {True, "true"} or (is_verified is None and trusts_missing):
        return ""
    if is_verified is None:
        return "the provider does not send email_verified, and `trust_email` is not set"
    return "the provider says that it is not verified (email_verified)"


def _map_mail(claims: Claims) -> tuple[str | None, str]:
    """Where messages go. Nobody's account depends on it, so a provider that says nothing is believed."""
    claim = claims.get("email")
    mail = read_mail(claim) if isinstance(claim, str) else None
    if mail is None:
        return None, "there is no usable claim email"
    why = _why_unverified(claims, trusts_missing=True)
    return (None, why) if why else (mail, "the claim email")


def _show(groups: Iterable[str]) -> str:
    named = list(groups)
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return (", ".join(named[:_SHOWN]) + more) or "none"
