"""A webhook that takes `{"text": …}`: those of Slack, Mattermost and Rocket.Chat, and whatever does as they do.
Blocks."""

import msgspec
import urllib3

from gpudeck.alerts.message import Message
from gpudeck.alerts.notifiers.escape import for_slack
from gpudeck.alerts.notifiers.letter import write_letter
from gpudeck.alerts.notifiers.order import Order, Outcome
from gpudeck.alerts.notifiers.verdict import of_status, of_words

_MOST_ANSWER = 4096


def write_text(message: Message, page: str | None) -> str:
    """As Slack's own marks have it, the title in bold; a text of the operator's own as it is."""
    letter = write_letter(message, for_slack, page)
    title = letter.title if message.text else f"*{letter.title.replace('*', '∗')}*"
    return f"{title}\n{letter.body}" if letter.body else title


def post(order: Order) -> Outcome:
    body = msgspec.json.encode({"text": write_text(order.message, order.page)})
    limits = urllib3.Timeout(connect=min(5.0, order.seconds), read=order.seconds)
    with urllib3.PoolManager(retries=False, timeout=limits) as pool:
        try:
            answer = pool.request(
                "POST",
                order.url,
                body=body,
                headers={"content-type": "application/json", "user-agent": "gpudeck"},
                preload_content=False,
                redirect=False,
            )
            # Whatever it has to say: a little of it is enough.
            answer.read(_MOST_ANSWER)
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            return of_words(f"{type(error).__name__} {error}")
        return of_status(answer.status)
