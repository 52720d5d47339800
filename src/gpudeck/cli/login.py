"""gpudeck login, logout and whoami: a personal token for this user on this machine."""

import re
import time
import webbrowser
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, TextIO
from urllib.parse import parse_qs, urlsplit

import click

from gpudeck.cli.hub_access import ask
from gpudeck.cli.options import find_hub, hub_option
from gpudeck.client import Client, Forbidden, LoginPending
from gpudeck.client.answers import DeviceAuthorization, Identity, PersonalToken
from gpudeck.collectors.host import host_name
from gpudeck.hub_lookup import SavedLogin, forget_login, load_login, save_login
from gpudeck.model.address import is_same_hub
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.text import clean, show_length

_EXAMPLES = """\b
Examples:
  gpudeck login http://hub:8042        prints an address and a code to confirm in a browser
  gpudeck login hub:8042 --browser     opens the browser of this machine
  gpudeck login hub:8042 --name ada    asks for the password instead
  gpudeck login hub:8042 --days 7      log in for a week
  gpudeck whoami                       your account and role
  gpudeck logout                       revoke the token
"""
_AGAIN = "Run `gpudeck login` again."


@click.command("login", epilog=_EXAMPLES)
@click.argument("url", required=False)
@click.option("--browser", is_flag=True, help="Open the browser of this machine, which must run here.")
@click.option("--name", metavar="NAME", help="Log in with this account and its password, without a browser.")
@click.option(
    "--password-file", type=click.File(), help="Read the password from the first line of FILE; - is standard input."
)
@click.option(
    "--days", type=click.IntRange(1, 365), default=30, show_default=True, help="How many days the login lasts."
)
def command(url: str | None, *, browser: bool, name: str | None, password_file: TextIO | None, days: int) -> None:
    """Log in to a hub, and use it for all further commands.

    Open the address that is printed on any machine, log in there, and confirm the code. With --browser, the browser of
    this machine is opened instead.

    The hub gives out a personal token, which is saved in ~/.config/gpudeck/login.json (mode 600) and sent only to this
    hub. It expires after --days days; `gpudeck logout` revokes it.
    """
    hub = find_hub(url).url
    client = Client(hub)
    me = client.me()
    if not me.can_log_in:
        raise UsageError(f"{client.shown} has no accounts.", _without_accounts(me))
    if browser and (name or password_file):
        raise UsageError("--browser excludes --name and --password-file.")
    if name or password_file:
        made = _log_in_with_password(client, name, password_file, days)
    else:
        made = _log_in_here(client, days) if browser else _log_in_on_page(client, days)
    _revoke(load_login())
    try:
        file = save_login(SavedLogin(hub, made.account, made.secret, made.expires_at))
    except OSError as error:
        Client(hub, token=made.secret).revoke_own_token()
        reason = str(error.strerror).lower()
        raise GpudeckError(f"the login cannot be saved: {error.filename}: {reason}.") from error
    click.echo(f"Logged in to {client.shown} as {clean(made.account)} for {days} days ({file}).")


def _log_in_with_password(client: Client, name: str | None, file: TextIO | None, days: int) -> PersonalToken:
    typed = name or click.prompt("Name", err=True)
    password = click.prompt("Password", hide_input=True, err=True) if file is None else file.readline().rstrip("\n")
    return client.log_in(typed, password, _label(), days * 86_400)


def _log_in_on_page(client: Client, days: int) -> PersonalToken:
    """Waits until the code is confirmed on the page, in any browser."""
    begun = client.begin_login(_label(), days * 86_400)
    click.echo(f"Open {_page_of(client, begun)}", err=True)
    click.echo(f"and confirm the code {clean(begun.user_code)}. Waiting…", err=True)
    end = time.monotonic() + begun.expires_in
    while True:
        time.sleep(begun.interval)
        try:
            return client.redeem_login(begun.device_code)
        except LoginPending:
            if time.monotonic() > end:
                raise GpudeckError("nobody confirmed the login in time.", _AGAIN) from None


def _log_in_here(client: Client, days: int) -> PersonalToken:
    """The browser of this machine sends the confirmation to a port that listens on loopback only."""
    with _Listener() as listener:
        begun = client.begin_login(_label(), days * 86_400, listener.server_port)
        page = _page_of(client, begun)
        if not webbrowser.open(page):
            raise GpudeckError("no browser can be opened on this machine.", "Log in without --browser.")
        click.echo(f"Confirm the code {clean(begun.user_code)} in the browser: {page}", err=True)
        code = listener.wait(begun.expires_in)
    return client.redeem_login(begun.device_code, code)


def _label() -> str:
    return f"gpudeck login on {host_name()}"


def _page_of(client: Client, begun: DeviceAuthorization) -> str:
    told = begun.verification_uri or ""
    page = told if told.startswith(("https://", "http://")) else f"{client.shown}/#/device"
    return clean(f"{page}?code={begun.user_code}")


class _Listener(HTTPServer):
    """Waits for the browser with the confirmation."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Confirmation)
        self.code: str | None = None

    def take(self, code: str) -> None:
        """`code` is empty for a refusal."""
        self.code = code

    def wait(self, seconds: float) -> str:
        """The code that the browser sends. Raises GpudeckError for a refusal, and if nothing arrives in time."""
        end = time.monotonic() + seconds
        while self.code is None and (left := end - time.monotonic()) > 0:
            self.timeout = left
            self.handle_request()
        if not self.code:
            why = "nobody confirmed the login in time." if self.code is None else "the login was denied on the page."
            raise GpudeckError(why, _AGAIN)
        return self.code


class _Confirmation(BaseHTTPRequestHandler):
    """The browser's request with the code or a refusal."""

    timeout = 5.0
    server: _Listener

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        code = query.get("code", [""])[0]
        is_code = re.fullmatch(r"[A-Za-z0-9_-]{43}", code) is not None
        if is_code or "denied" in query:
            self.server.take(code if is_code else "")
            text = b"Confirmed. You can close this window and go back to the terminal.\n"
            self._answer(200, text if is_code else b"Denied. You can close this window.\n")
        else:
            self._answer(404, b"There is nothing here.\n")

    def _answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the address contains the code."""


def _without_accounts(me: Identity) -> str:
    if me.kind == "local":
        return "You can use it from this machine without a login."
    return (
        "Create the first account: open the link that the hub printed at its start, or run "
        "`gpudeck account add NAME --role admin` on its machine, as the hub's user."
    )


@click.command("logout", epilog="\b\nExamples:\n  gpudeck logout")
def logout_command() -> None:
    """Log out: revoke the saved token on its hub, and delete it here."""
    saved = load_login()
    if saved is None:
        raise GpudeckError("you are not logged in.", "Log in with `gpudeck login URL`.")
    problem = _revoke(saved)
    forget_login()
    if problem:
        left = show_length(max(0.0, saved.expires_at - time.time()))
        raise GpudeckError(
            f"logged out here, but the token is not revoked: {problem.rstrip('.')}.", f"It expires in {left}."
        )
    click.echo(f"Logged out of {Client(saved.hub).shown}.")


def _revoke(saved: SavedLogin | None) -> str:
    """Revoke the token. Returns the reason if that fails, otherwise an empty text."""
    if saved is None:
        return ""
    try:
        Client(saved.hub, token=saved.token).revoke_own_token()
    except Forbidden:
        # Expired, or revoked already.
        return ""
    except GpudeckError as error:
        return error.message
    return ""


@click.command("whoami", epilog="\b\nExamples:\n  gpudeck whoami --hub hub:8042")
@hub_option
def whoami_command(*, hub: str) -> None:
    """Show your account and role on the hub. Exit code 1 if you are not logged in."""
    me = ask(hub, lambda client: client.me())
    shown = Client(hub).shown
    if me.kind == "nobody":
        step = (
            f"Log in with `gpudeck login {shown}`." if me.can_log_in else f"It has no accounts. {_without_accounts(me)}"
        )
        raise GpudeckError(f"you are not logged in to {shown}.", step)
    saved = load_login()
    until = ""
    if saved is not None and is_same_hub(saved.hub, hub) and me.name == saved.name:
        until = f", logged in for {show_length(max(0.0, saved.expires_at - time.time()))} more"
    click.echo(f"{clean(me.name)} ({me.role}) at {shown}{until}.")
