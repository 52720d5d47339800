"""Who may do what in this hub, as its settings say."""

from gpudeck.api.access import Authenticator, Policy
from gpudeck.auth.auth import Auth
from gpudeck.model.settings import is_loopback
from gpudeck.settings import Settings


def make_policy(settings: Settings) -> Policy:
    return Policy(
        is_readable=settings.read == "open",
        needs_accounts=not is_loopback(settings.listen.host) or settings.read == "login",
        commands=settings.commands,
        reserves_without_account=settings.read == "open" and settings.reservations.without_account,
    )


def make_authenticator(settings: Settings, auth: Auth) -> Authenticator:
    return Authenticator(
        find_token=auth.find_token,
        find_session=auth.find_session,
        find_proxied=auth.find_proxied,
        has_accounts=lambda: auth.has_accounts or settings.read == "login",
        is_private=is_loopback(settings.listen.host),
        is_decided=settings.read is not None,
        proxy_header=settings.login.proxy.header,
        prefix=settings.path_prefix,
    )
