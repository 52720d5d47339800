"""/api/v1/tokens (GET, POST) and /api/v1/tokens/{id} (DELETE).

Admins see and make all of them. Users see and make their own, which can do no more than they can themselves.
"""

from typing import Annotated, Literal

from litestar import delete, get, post
from litestar.exceptions import NotFoundException, PermissionDeniedException, ValidationException
from litestar.params import JSONBody, PathParameter
from msgspec import Meta, Struct

from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import allow, documented
from gpudeck.api.login import AuthRequest, Done, TheAuth
from gpudeck.auth.caller import RANKS, Caller
from gpudeck.auth.tokens import Token
from gpudeck.model.errors import UsageError
from gpudeck.server.asgi import ErrorBody

TokenRole = Literal["agent", "viewer", "user", "admin", "calendar"]


class TokenList(Struct, frozen=True):
    tokens: list[Token]


class NewToken(Struct, frozen=True, forbid_unknown_fields=True):
    """`hosts` is for agents: the host, or the pattern of names, that the token may report as."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    role: TokenRole
    hosts: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    expires_at: Annotated[float, Meta(ge=0, le=1e11)] | None = None


class MadeToken(Struct, frozen=True):
    """`secret` is told only here."""

    token: Token
    secret: str


@get("/api/v1/tokens", opt=access("user"))
async def list_tokens(request: AuthRequest, auth: TheAuth) -> TokenList:
    """Tokens with their last use; never their secrets."""
    caller = caller_of(request)
    return TokenList([token for token in await auth.tokens.list() if _is_theirs(token, caller)])


@post(
    "/api/v1/tokens",
    opt=access("user"),
    responses={
        201: documented(MadeToken, "The new token, with its secret"),
        400: documented(ErrorBody, "A token that makes no sense"),
    },
)
async def create_token(request: AuthRequest, data: JSONBody[NewToken], auth: TheAuth) -> MadeToken:
    """Make a token. Its secret is in the answer, and nowhere else."""
    caller = caller_of(request)
    is_admin = caller.is_at_least("admin")
    if not is_admin and (data.role == "agent" or RANKS[data.role] > RANKS[caller.role]):
        raise PermissionDeniedException(f"{caller.name} has the role {caller.role} and cannot hand out more")
    owner = None if data.role == "agent" else caller.account_id
    try:
        token, secret = await auth.tokens.create(
            data.name,
            data.role,
            hosts=data.hosts,
            expires_at=data.expires_at,
            account_id=owner,
            created_by=caller.name,
            also=lambda made: auth.audit.entry(
                caller, "create token", f"{made.id} {made.name}", details=f"role {made.role}"
            ),
        )
    except UsageError as error:
        raise ValidationException(str(error)) from error
    return MadeToken(token, secret)


@delete(
    "/api/v1/tokens/{token_id:int}",
    status_code=200,
    opt=access("user"),
    responses={200: documented(Done, "It is worth nothing from now on"), 404: documented(ErrorBody, "No such token")},
)
async def revoke_token(
    request: AuthRequest, token_id: Annotated[int, PathParameter(description="The token's number")], auth: TheAuth
) -> Done:
    """Take a token back."""
    caller = caller_of(request)
    known = next((token for token in await auth.tokens.list() if token.id == token_id), None)
    if known is None or not _is_theirs(known, caller):
        raise NotFoundException(f"there is no token {token_id}")
    await auth.tokens.revoke(
        token_id, lambda token: auth.audit.entry(caller, "revoke token", f"{token.id} {token.name}")
    )
    return Done()


allow_tokens = allow("/api/v1/tokens", "GET", "POST")


def _is_theirs(token: Token, caller: Caller) -> bool:
    is_own = caller.account_id is not None and token.account_id == caller.account_id
    return is_own or caller.is_at_least("admin")


ROUTES = [allow_tokens, list_tokens, create_token, revoke_token]
