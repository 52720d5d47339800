"""gpudeck notify: where messages go, and whether they arrive. Works on the hub's own configuration, without a hub."""

import asyncio
import time
from pathlib import Path

import click

from gpudeck.cli.hub_access import need_hub
from gpudeck.cli.options import hub_config_option
from gpudeck.model.errors import GpudeckError, PluginError, UsageError
from gpudeck.settings import Settings, load_settings

with need_hub("messages are sent on the hub's machine"):
    from gpudeck.alerts.notifiers.rendering import Message
    from gpudeck.alerts.notifiers.routes import BOT
    from gpudeck.alerts.notifiers.sender_process import SenderProcess, SendRequest
    from gpudeck.alerts.notifiers.settings import read_url
    from gpudeck.auth.auth import UserDirectory
    from gpudeck.chat.service import answer_message

_EXAMPLES = """\b
Examples:
  gpudeck notify test ops                    send a test message
  gpudeck notify test chat.slack --user ada  to one user, from the Slack bot

\b
Exit codes of test:
  0  the service accepted the message
  1  it did not; the reason is printed
  2  there is no such channel, or the configuration has a mistake
"""


@click.group("notify", epilog=_EXAMPLES)
def command() -> None:
    """Test the channels to which the hub sends messages. Run this on the hub's machine."""


@command.command("test")
@click.argument("name")
@click.option("--user", metavar="ACCOUNT", help="Send it to this user directly, through the channel.")
@hub_config_option
def test_channel(name: str, *, user: str | None, config: Path | None) -> None:
    """Send a test message to the channel NAME, and print the result."""
    settings = load_settings(config)[0]
    is_bot = name == BOT and settings.chat.slack is not None
    sending = _send_by_bot(user, settings) if is_bot else _send(_make_order(name, user, settings))
    where = name if user is None else f"{user} through {name}"
    try:
        asyncio.run(sending)
    except PluginError as error:
        raise GpudeckError(f"the test message to {where} did not arrive: {error.message}", error.hint) from error
    click.echo(f"{where}: the service accepted the test message.")


def _make_order(name: str, user: str | None, settings: Settings) -> SendRequest:
    """Raises UsageError."""
    notify = settings.notify
    if name not in notify.channels:
        known = ", ".join(notify.channels)
        raise UsageError(
            f"there is no channel {name}.", f"There are: {known}." if known else "notify.channels is empty."
        )
    return SendRequest(
        url=read_url(name, notify.channels[name]),
        message=_test_message(name),
        recipient=None if user is None else _recipient(name, user, settings),
        page=notify.page,
    )


def _recipient(name: str, account: str, settings: Settings) -> str:
    notify, user = settings.notify, UserDirectory(settings.users).user_of(account)
    if name not in {notify.mail, notify.slack}:
        raise UsageError(f"{name} does not send to single users.", "notify.mail and notify.slack name what does.")
    way = "mail" if name == notify.mail else "slack"
    recipient: str | None = getattr(user, way)
    if recipient is None:
        raise UsageError(f"users.{account}.{way} is not set.")
    return recipient


async def _send_by_bot(account: str | None, settings: Settings) -> None:
    """Raises UsageError, or PluginError where Slack does not take it."""
    from gpudeck.chat.slack import write_once  # noqa: PLC0415 - an extra

    if account is None:
        raise UsageError("the bot writes to single users.", "Name one of them with --user.")
    slack_id = UserDirectory(settings.users).user_of(account).slack
    if slack_id is None:
        raise UsageError(f"users.{account}.slack is not set.")
    if settings.chat.slack is not None:
        await write_once(settings.chat.slack, slack_id, answer_message(_test_message(BOT), settings.notify.page))


def _test_message(name: str) -> Message:
    return Message(
        key=f"test {name} {time.time():.3f}",
        at=time.time(),
        kind="test",
        rule="test",
        severity="info",
        title="A test message of gpudeck",
        lines=(f"This message was sent through the channel {name}.",),
        link="#/",
    )


async def _send(request: SendRequest) -> None:
    sender = SenderProcess()
    try:
        await sender.send(request)
    finally:
        await sender.close()
