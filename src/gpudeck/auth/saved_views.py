"""Views of the page that accounts have saved: one list each, written as a whole."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from sqlalchemy import select

from gpudeck.database.engine import Database
from gpudeck.database.schema import saved_views as table

MAX_VIEWS: Final = 50


class SavedView(Struct, frozen=True, forbid_unknown_fields=True):
    """`href` is the part of the page's address from `?` or `#` on. At most one view is shown where the page is opened
    without naming anything."""

    name: Annotated[str, Meta(min_length=1, max_length=60, pattern=r"\A\S(.*\S)?\Z")]
    href: Annotated[str, Meta(min_length=1, max_length=2000, pattern=r"\A[?#]\S*\Z")]
    is_default: bool = False


class SavedViews(Struct, frozen=True, forbid_unknown_fields=True):
    """In the order in which they were saved, each with a name of its own."""

    views: Annotated[list[SavedView], Meta(max_length=MAX_VIEWS)]

    def __post_init__(self) -> None:
        if len({view.name for view in self.views}) < len(self.views):
            raise ValueError("two views have the same name")
        if sum(view.is_default for view in self.views) > 1:
            raise ValueError("more than one view is the default")


async def read_views(database: Database, account_id: int) -> SavedViews | None:
    """None where the account never saved any. Raises Temporary."""
    found = await database.execute(select(table.c.views).where(table.c.account_id == account_id))
    body = found.scalar_one_or_none()
    return None if body is None else msgspec.json.decode(body, type=SavedViews)


async def write_views(database: Database, account_id: int, views: SavedViews) -> None:
    """From here on these, and no others. Raises Temporary."""
    body = msgspec.json.encode(views).decode()
    row = database.insert(table).values(account_id=account_id, views=body)
    await database.execute(row.on_conflict_do_update(index_elements=[table.c.account_id], set_={"views": body}))
