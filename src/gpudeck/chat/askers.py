"""Who asks the bot: somebody in Slack, as the hub knows them, and what they may do."""

from typing import Literal

from msgspec import Struct

from gpudeck.api.access import Policy
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.auth.parts import Auth
from gpudeck.chat.escape import escape

FROM = "Slack"
"""In the audit log, where the address stands."""

Read = Literal["everyone", "people"]


class Asker(Struct, frozen=True):
    """`slack_id` is theirs, `caller` who they are to the hub: nobody, where no entry of `people` names the ID.

    `trouble` is why somebody who is named may do nothing. `is_guest` is for those who may be of another organisation,
    which is in the same channel.
    """

    slack_id: str
    caller: Caller
    trouble: str = ""
    is_guest: bool = False


class Askers:
    """Looks people up. Nobody is believed who they say they are: Slack tells the ID, `people` the account."""

    def __init__(self, auth: Auth, policy: Policy, read: Read | None) -> None:
        self._auth = auth
        self._policy = policy
        self._is_open = policy.is_readable if read is None else read == "everyone"

    @property
    def is_open(self) -> bool:
        """Whether everyone in the workspace may look, and so may read answers that stand in a channel."""
        return self._is_open

    async def find(self, slack_id: str, *, is_guest: bool = False) -> Asker:
        """Raises Temporary when the database does not answer."""
        name = self._auth.people.account_of_slack(slack_id)
        if name is None:
            return Asker(slack_id, NOBODY, is_guest=is_guest)
        account = await self._auth.accounts.find(name)
        if account is None:
            return self._without_account(slack_id, name)
        if account.is_disabled:
            return Asker(slack_id, NOBODY, f"the account {escape(name)} is disabled.")
        return Asker(slack_id, self._auth.caller_of(account, FROM))

    def may_look(self, asker: Asker) -> bool:
        if asker.caller.is_at_least("viewer"):
            return True
        return self._is_open and not asker.is_guest and not asker.trouble

    def logins_of_slack(self, slack_id: str) -> tuple[str, frozenset[str]] | None:
        """The account of somebody who was mentioned, and their names on the hosts; None where nobody knows them."""
        name = self._auth.people.account_of_slack(slack_id)
        return None if name is None else (name, self._auth.people.logins_of(name))

    def logins_of(self, name: str) -> frozenset[str]:
        """The names on the hosts of whoever is called so, there or on the hub."""
        people = self._auth.people
        return frozenset((name,)) | people.logins_of(people.account_of(name) or name.lower())

    def _without_account(self, slack_id: str, name: str) -> Asker:
        """Where a hub has accounts, an entry alone makes nobody a user; where it has none, the entry is all there is:
        whoever writes the configuration decides."""
        if self._policy.needs_accounts or self._auth.has_accounts:
            return Asker(slack_id, NOBODY, f"the hub has no account {escape(name)} yet.")
        logins = self._auth.people.logins_of(name)
        return Asker(slack_id, Caller(kind="account", role="user", name=name, logins=logins, address=FROM))


def explain_stranger(asker: Asker) -> str:
    """Why they may not, and what to do, in Slack's markup."""
    if asker.trouble:
        return f"I know you, but {asker.trouble} Ask whoever runs this hub."
    if asker.is_guest:
        return "I answer people of this workspace only."
    return (
        "I do not know you yet. Ask whoever runs this hub to put your Slack ID into `people` of gpudeck.yaml: "
        f"`slack: {escape(asker.slack_id)}`"
    )


def explain_role(asker: Asker) -> str:
    return f"{escape(asker.caller.name)} has the role {asker.caller.role}, and this needs the role user."
