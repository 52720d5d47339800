"""GET /api/v1/digest: a digest as it would be sent."""

from typing import Annotated

from litestar import Response, get
from litestar.params import QueryParameter

from gpudeck.api.access import TheCaller, access
from gpudeck.api.answers import HubRequest, RequestRefused, answer_json
from gpudeck.api.services import TheServices
from gpudeck.model.usage import DigestPreview, Frequency


@get("/api/v1/digest", opt=access("user"))
async def preview_digest(
    *,
    request: HubRequest,
    caller: TheCaller,
    services: TheServices,
    user: Annotated[
        str | None,
        QueryParameter(max_length=64, description="An account, or # and a channel; your own without it. For admins"),
    ] = None,
    every: Annotated[
        Frequency | None, QueryParameter(description="Of the last week or month, whatever the settings say")
    ] = None,
) -> Response[DigestPreview]:
    """Your digest of the last week or month, as it would be sent. Nothing is sent."""
    name = user or caller.name
    if name != caller.name and not caller.is_at_least("admin"):
        raise RequestRefused(403, "forbidden", "only admins can see digests of others.")
    if services.preview_digest is None:
        raise RequestRefused(404, "no_digests", "this hub sends no digests.")
    found = await services.preview_digest(name, every)
    return await answer_json(request, found)
