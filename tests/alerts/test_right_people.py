"""The simulated lab's faults, told to real mail, webhook and chat by a real hub that is killed in between: the right
people get the right messages, once."""

import contextlib
import email
import email.policy
import json
import os
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from alerts import quick
from alerts.notifiers.sinks import MailServer, Webhook, running_mail_server, running_webhook
from fakes.hubs import HubProcess
from fakes.slack import APP_TOKEN, BOT_TOKEN, FakeSlack, read, slack_in_a_thread
from fakes.waiting import wait_until
from gpudeck.collectors.simulated.work import FIRST_NAMES

LIST = "gpus@lab.example"
Holdings = set[tuple[str, str]]
"""Users, each with the place of a GPU, such as gpu02:7."""
LOST = "cannot be read"
FAULTS = (LOST, "uncorrected memory errors", "no process is on it", "% full", "°C")


class Lab:
    """The hub, and where its messages arrive."""

    def __init__(self, folder: Path, hook: Webhook, mail: MailServer, slack: FakeSlack) -> None:
        self.folder, self.hook, self.mail, self.slack = folder, hook, mail, slack
        self.held: Holdings = set()
        rules = quick.choose_rules()
        self.faults = [fault for fault in FAULTS if fault != LOST or rules == quick.RULES]
        people = [f"  {name}: {{mail: {name}@lab.example, slack: U0{name.upper()}}}" for name in FIRST_NAMES]
        tokens = f"{{app_token: {APP_TOKEN}, bot_token: {BOT_TOKEN}, api_url: '{slack.api}'}}"
        notify = f"""
chat: {{slack: {tokens}}}
notify:
  demo: true
  mail: list
  channels:
    ops: "{hook.url}"
    list: "mailto://127.0.0.1:{mail.port}/?from=hub@lab.example&to={LIST}"
    pager: "{hook.url.replace("/hook", "/pager")}"
  routes:
    - {{severity: critical, to: [pager], continue: true}}
    - {{to: [ops, list]}}
"""
        (folder / "gpudeck.yaml").write_text(
            "\n".join(["users:", *people, f"{rules}    gpu_idle: {{for: 1s}}\n", notify])
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[HubProcess]:
        """In the end it is killed with its agent: nobody says goodbye. Not while something is on its way: nobody could
        say then whether it arrived."""
        config = str(self.folder / "gpudeck.yaml")
        hub = HubProcess(self.folder, ["--listen", "127.0.0.1:0", "--demo", str(quick.HOSTS), "--config", config])
        try:
            yield hub
            wait_until(lambda: self._stands_still(hub), "nothing being on its way")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(hub.process.pid, signal.SIGKILL)
            hub.stop(signal.SIGKILL)

    def _stands_still(self, hub: HubProcess) -> bool:
        """Stop it, and let it go on where it was sending something."""
        self.evaluate(hub)
        os.killpg(hub.process.pid, signal.SIGSTOP)
        question = "SELECT 1 FROM outbox WHERE state = 'waiting' AND claimed_until IS NOT NULL"
        with contextlib.closing(sqlite3.connect(self.folder / "gpudeck.db", timeout=10)) as database:
            is_sending = database.execute(question).fetchone() is not None
        if is_sending:
            os.killpg(hub.process.pid, signal.SIGCONT)
        return not is_sending

    def mails(self) -> list[tuple[str, str]]:
        """To whom, and the subject."""
        return [(to, text.partition("\n")[0]) for to, text in self.whole_mails()]

    def whole_mails(self) -> list[tuple[str, str]]:
        read_mail = [(to, email.message_from_string(text, policy=email.policy.default)) for to, text in self.mail.mails]
        return [(",".join(to), f"{one['Subject']}\n{one.get_content()}") for to, one in read_mail]

    def direct(self) -> list[tuple[str, str]]:
        """To whom in Slack, and the title."""
        return [(said["channel"], read(said).splitlines()[0].strip("*")) for said in self.slack.said]

    def titles(self, path: str = "/hook") -> list[str]:
        return [text.splitlines()[0].strip("*") for text in self.hook.texts(path)]

    def personal(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """What people got by themselves, by mail and in Slack: who, and the whole text."""
        mails = [(to.partition("@")[0], text) for to, text in self.whole_mails() if to != LIST]
        return mails, [(said["channel"].removeprefix("D0").lower(), read(said)) for said in self.slack.said]

    def evaluate(self, hub: HubProcess) -> Holdings:
        """Who holds which GPU idle at this moment. All that was ever seen is in `held`."""
        hosts = json.loads(hub.get("/api/v1/fleet"))["hosts"]
        gpus = [(f"{host['name']}:{gpu['label']}", gpu) for host in hosts for gpu in host["gpus"]]
        seen = {(user, place) for place, gpu in gpus if gpu["availability"] == "idle" for user in gpu["users"]}
        self.held |= seen
        return seen

    def are_owners_told(self, hub: HubProcess) -> bool:
        """Everybody who holds a GPU idle at this moment of just that GPU, in both ways."""
        now = self.evaluate(hub)
        return all(now <= {holding for who, text in told for holding in named(who, text)} for told in self.personal())

    def is_all_told(self) -> bool:
        listed = [title for to, title in self.mails() if to == LIST]
        return all(any(fault in title for title in told) for told in (self.titles(), listed) for fault in self.faults)


def named(who: str, text: str) -> Holdings:
    """The GPUs that a message to somebody names. Those in the title of several are those of its lines."""
    lines = re.findall(r"GPU (\S+) of (\S+) is idle, in use by (\w+)", text)
    assert {user for _, _, user in lines} == {who}, text
    places = {f"{host}:{label}" for label, host, _ in lines}
    several = re.search(r"GPUs are idle: ([^\n*]+)", text)
    assert several is None or set(several[1].split(", ")) == places, text
    return {(who, place) for place in places}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running_webhook() as hook, running_mail_server() as mail, slack_in_a_thread() as thread:
        yield Lab(tmp_path, hook, mail, thread.slack)


@pytest.mark.slow
def test_the_right_people_get_the_right_messages_once(lab: Lab) -> None:
    for messages in (1, 3):
        with lab.running() as hub:

            def is_begun(hub: HubProcess = hub, messages: int = messages) -> bool:
                lab.evaluate(hub)
                return len(lab.titles()) >= messages

            wait_until(is_begun, "a message", 60)
    with lab.running() as hub:
        wait_until(lab.is_all_told, "the rest of the messages", 60)
        wait_until(lambda: lab.are_owners_told(hub), "a message to everybody who holds a GPU idle", 60)
    public, critical = lab.titles(), lab.titles("/pager")
    everything = [("/hook", title) for title in public] + [("/pager", title) for title in critical]
    assert [told for told, times in Counter(everything + lab.mails() + lab.direct()).items() if times > 1] == []
    assert all(title.startswith("Demo: ") for _, title in everything + lab.mails() + lab.direct())
    assert len(public) == len(lab.faults)
    assert [title for title in critical if LOST not in title and "°C" not in title] == []
    assert not any("is idle" in title for title in public + critical)
    # Each message to a user names GPUs of that user, and no other.
    personal = [told for way in lab.personal() for told in way]
    assert {holding for who, text in personal for holding in named(who, text)} <= lab.held
