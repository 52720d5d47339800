"""The idle policy beside a real Slurm: a job that never uses its GPU is cancelled by a hook that calls scancel, and a
hub that is killed between the steps repeats none of them."""

import contextlib
import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from alerts.notifiers.sinks import MailServer, running_mail_server
from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.pushed import PushedHost, pushing
from fakes.slurm import SlurmCluster, slurm_cluster
from fakes.waiting import wait_until
from gpudeck.database.sqlite import FILE_NAME, open_to_read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def write_settings(folder: Path, cluster: SlurmCluster, mail: MailServer) -> Path:
    environment = [f"{name}={cluster.environment[name]}" for name in ("SLURM_CONF", "PATH")]
    hook = folder / "release-gpu"
    hook.write_text(f'#!/bin/sh\n[ -n "$GPUDECK_JOB" ] && exec env {" ".join(environment)} scancel "$GPUDECK_JOB"\n')
    hook.chmod(0o755)
    rule = {"name": "quick", "warn_after": "1m", "act_after": "2m", "grace": "1m", "hook": [str(hook)]}
    settings = {
        "demo": "never",
        "local": "never",
        "schedulers": {"slurm": [{"command": ["env", *environment], "interval": 1, "timeout": 3}]},
        "users": {"root": {"mail": "root@example.org"}},
        "notify": {
            "channels": {"mail": {"url": f"mailto://127.0.0.1:{mail.port}?from=hub@example.org&to=ops@example.org"}},
            "mail": "mail",
            "routes": [{"rules": ["ask"], "to": ["mail"]}],
        },
        "idle_policy": {"mode": "act", "rules": [rule]},
    }
    file = folder / "gpudeck.yaml"
    file.write_text(json.dumps(settings))
    return file


def written_events(data_dir: Path) -> list[str]:
    with contextlib.closing(open_to_read(data_dir / FILE_NAME)) as file:
        return [kind for (kind,) in file.execute("SELECT kind FROM events")]


class Site:
    def __init__(self, hub: HubProcess, config: Path, host: PushedHost) -> None:
        self.hub = hub
        self.config = config
        self.host = host

    def ladders(self) -> list[dict[str, Any]]:
        return list(json.loads(self.hub.get("/api/v1/idle-policy"))["ladders"])

    def done(self) -> list[str]:
        return [step["kind"] for ladder in self.ladders() for step in ladder["done"]]

    def events(self) -> list[dict[str, Any]]:
        found = json.loads(self.hub.get("/api/v1/events?limit=500"))["events"]
        return [event for event in found if event["kind"].startswith("idle_policy")]

    def kill_and_restart(self) -> None:
        self.hub.stop(signal.SIGKILL)
        self.hub = HubProcess(self.hub.data_dir, ["--listen", "127.0.0.1:0", "--config", str(self.config)])
        self.host.url = self.hub.url


def test_a_job_that_uses_nothing_is_cancelled_after_one_warning_whatever_becomes_of_the_hub(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gpudeck-slurm-") as folder,
        slurm_cluster(Path(folder)) as cluster,
        running_mail_server() as mail,
    ):
        config = write_settings(tmp_path, cluster, mail)
        with running_hub(tmp_path, "--config", str(config)) as hub, pushing(hub, "n1", 4, "machine-1") as host:
            site = Site(hub, config, host)
            job = cluster.submit("--gres=gpu:1", "--nodelist=n1", "--job-name=forgotten")
            wait_until(lambda: len(site.ladders()) == 1, "the idle GPU", 60)
            site.kill_and_restart()
            wait_until(lambda: len(mail.mails) == 1, "the warning", 180)
            # Events reach the disk within a second, and a kill may cost them: what has to be there once is the mail.
            wait_until(lambda: "idle_policy_warn" in written_events(tmp_path), "the event on the disk", 30)
            site.kill_and_restart()
            wait_until(lambda: site.done() == ["warn"], "the ladder after the restart", 60)
            assert "forgotten" in cluster.run("squeue", "--format=%j", "--noheader")
            wait_until(lambda: job not in cluster.run("squeue", "--noheader"), "the end of the job", 180)
            wait_until(lambda: any(one["kind"] == "idle_policy_hook" for one in site.events()), "its event", 60)
            kinds = sorted(event["kind"] for event in site.events())
            assert kinds == ["idle_policy_act", "idle_policy_hook", "idle_policy_warn"]
            [(to, text)] = mail.mails
            assert to == ["root@example.org"]
            assert "idle" in text
            warned, acted = (
                next(one["at"] for one in site.events() if one["kind"] == f"idle_policy_{kind}")
                for kind in ("warn", "act")
            )
            assert acted - warned >= 60
            shown = gpudeck(tmp_path, "policy", "--dry-run", "--since", "1h", "--hub", site.hub.url)
            assert shown.stdout.startswith("Dry run of the idle policy"), shown.stderr
            site.hub.stop()
