"""The token with which a command speaks to a hub: the one in $GPUDECK_TOKEN, or that of a hub on this machine."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from gpudeck.app.settings import choose_data_dir, load_settings
from gpudeck.model.errors import GpudeckError
from gpudeck.model.hub_url import check_hub_url
from gpudeck.model.settings import is_loopback

VARIABLE = "GPUDECK_TOKEN"
ADMIN_FILE = "admin.token"


def find_own_token(hub: str, config: Path | None = None) -> str | None:
    """None where there is none. The token of this machine's hub goes to no other machine; whoever may read its file
    may do everything there anyway."""
    if named := os.environ.get(VARIABLE):
        return named
    if not is_loopback(urlsplit(check_hub_url(hub)).hostname or ""):
        return None
    try:
        return (choose_data_dir(load_settings(config)[0]) / ADMIN_FILE).read_text().strip() or None
    except (OSError, UnicodeError, GpudeckError):
        return None
