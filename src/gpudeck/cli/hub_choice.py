"""Which hub a command asks: as `gpudeck.hub_lookup`, and as the configuration says."""

import os

from gpudeck import hub_lookup
from gpudeck.hub_lookup import HubChoice, check_address

# Where gpudeck.config.find_config looks too.
_CONFIGURATIONS = ("gpudeck.yaml", "~/.config/gpudeck/gpudeck.yaml", "/etc/gpudeck/gpudeck.yaml")


def find_hub(option: str | None = None) -> HubChoice:
    """The hub to ask; `option` is what --hub says. Raises UsageError for an address that makes no sense, and
    ConfigurationError for a configuration with mistakes."""
    return hub_lookup.find_hub(option, find_configured_hub)


def has_configuration() -> bool:
    """Whether a configuration would be found. Most machines have none: what reads it need not be loaded there."""
    is_named = bool(os.environ.get("GPUDECK_CONFIG"))
    return is_named or any(os.path.exists(os.path.expanduser(path)) for path in _CONFIGURATIONS)  # noqa: PTH110, PTH111


def find_configured_hub() -> HubChoice | None:
    """What the configuration found says: `agent.hub`, or where the hub of this machine listens. None without a file,
    and for one that this user may not read. Raises ConfigurationError."""
    if not has_configuration():
        return None
    from gpudeck.settings import find_file, load_settings, own_address  # noqa: PLC0415 - see above

    found = find_file(None)
    if found is None or not os.access(found, os.R_OK):
        return None
    settings, file = load_settings(None)
    if settings.agent.hubs:
        return HubChoice(check_address(settings.agent.hubs), f"agent.hub in {file}")
    return HubChoice(own_address(settings), f"listen in {file}")
