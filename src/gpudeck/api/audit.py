"""GET /api/v1/audit: who did what, for admins."""

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter
from msgspec import Struct

from gpudeck.api.access import access
from gpudeck.api.login import TheAuth
from gpudeck.auth.audit import AuditEntry


class AuditLog(Struct, frozen=True):
    """The newest first. `before` of the next question is the last one's id."""

    entries: list[AuditEntry]


@get("/api/v1/audit", opt=access("admin"))
async def read_audit(
    auth: TheAuth,
    limit: Annotated[int, QueryParameter(ge=1, le=1000, description="At most so many")] = 100,
    before: Annotated[
        int | None, QueryParameter(ge=1, le=2**63 - 1, description="Only entries older than this one")
    ] = None,
) -> AuditLog:
    """Logins, writes, tokens and changes of the configuration."""
    return AuditLog(await auth.audit.list(limit=limit, before_id=before))


ROUTES = [read_audit]
