"""deploy/slurm: a mail is passed on and an epilog ends, whatever the hub does. With a real Slurm:
tests/schedulers/test_slurm_accounting.py."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
SUBJECT = "Slurm Job_id=7 Name=train me Ended, Run time 00:01:00, COMPLETED, ExitCode 0"


class Controller:
    """The scripts and their settings in a folder, with programs in place of Slurm's and of mail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for script in SCRIPTS.glob("*.sh"):
            shutil.copy(script, folder)
        note = f'#!/bin/sh\n{{ printf "%s\\n" "$@"; cat; }} >>{folder}/$(basename "$0").log\n'
        self.comment = folder / "comment"
        self.comment.write_text("")
        version = '[ "$1" != --version ] || exec echo slurm 24.11.0'
        keep = (
            f"#!/bin/sh\n{version}\nprintf '%s\\n' \"$7\" | sed 's/^AdminComment=//; s/\"//g' | {{}} >{self.comment}\n"
        )
        read = f"#!/bin/sh\ncat {self.comment}\n"
        self._programs = {"mail": note, "logger": note, "sacct": read, "sacctmgr": keep.format("cat")}
        self._lower = keep.format("tr A-Z a-z")
        self.write_programs()
        self.answer(f'exec {sys.executable} -m gpudeck "$@"')

    def write_programs(self, *, lower: bool = False) -> None:
        """`lower`: sacctmgr writes in lower case."""
        for name, text in (self._programs | ({"sacctmgr": self._lower} if lower else {})).items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def fail(self, program: str) -> None:
        (self.folder / program).write_text("#!/bin/sh\nexit 1\n")

    def answer(self, command: str) -> None:
        (self.folder / "gpudeck").write_text(f"#!/bin/sh\n{command}\n")
        (self.folder / "gpudeck").chmod(0o755)

    def set(self, hub: str) -> None:
        settings = {"GPUDECK_HUB": hub, "GPUDECK": self.folder / "gpudeck", "GPUDECK_MAIL": self.folder / "mail"}
        (self.folder / "gpudeck.env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def run(self, script: str, *arguments: str, body: str = "", **others: str) -> int:
        """`others` are more variables of Slurm."""
        path = f"{self.folder}:{os.environ['PATH']}"
        environment = {"SLURM_JOB_ID": "7", "PATH": path, "HOME": str(self.folder)} | others
        command = [str(self.folder / script), *arguments]
        return subprocess.run(command, input=body, text=True, env=environment, check=False, timeout=120).returncode

    def run_prolog(self) -> int:
        return self.run("gpudeck-prolog.sh")

    def log(self, program: str) -> str:
        file = self.folder / f"{program}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    found = Controller(tmp_path)
    found.set("http://127.0.0.1:1")
    return found


@pytest.fixture
def hanging_hub() -> Iterator[str]:
    """Connections are made and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_mail_has_the_report_below_its_text(controller: Controller) -> None:
    controller.answer('echo "report of $2"')
    assert controller.run("gpudeck-mail.sh", "-s", SUBJECT, "ada", body="text\n") == 0
    assert controller.log("mail") == f"-s\n{SUBJECT}\nada\ntext\nAs of the last reading of Slurm:\nreport of 7\n"


@pytest.mark.parametrize(
    "subject", ["Slurm Job_id=7 Name=x Began, Queued time 00:00:01", "hello", "Job_id=$(id) Ended"]
)
def test_other_mails_have_none(controller: Controller, subject: str) -> None:
    controller.answer("echo report")
    controller.run("gpudeck-mail.sh", "-s", subject, "ada")
    told = controller.log("mail")
    assert told.startswith(f"-s\n{subject}\nada\n")
    assert ("report" in told) == (subject == "hello"), "without a number in the subject that of the environment counts"


def test_a_hub_that_is_away_changes_nothing(controller: Controller) -> None:
    assert controller.run("gpudeck-mail.sh", "-s", SUBJECT, "ada", body="text\n") == 0
    assert controller.log("mail") == f"-s\n{SUBJECT}\nada\ntext\n"
    assert controller.run("gpudeck-epilog.sh") == 0
    assert controller.comment.read_text() == ""


def test_a_hub_that_hangs_changes_nothing(controller: Controller, hanging_hub: str) -> None:
    controller.set(hanging_hub)
    assert controller.run("gpudeck-mail.sh", "-s", SUBJECT, "ada", body="text\n") == 0
    assert controller.log("mail") == f"-s\n{SUBJECT}\nada\ntext\n"
    assert controller.run("gpudeck-epilog.sh") == 0
    assert controller.comment.read_text() == ""


def test_an_epilog_writes_the_summary_into_an_empty_comment(controller: Controller) -> None:
    controller.answer("echo JS1:AbC==")
    assert controller.run("gpudeck-epilog.sh") == 0
    assert controller.comment.read_text().strip() == "JS1:AbC=="


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ({}, "7"),
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3"),
    ],
)
def test_an_epilog_names_one_task_and_never_all(controller: Controller, others: dict[str, str], name: str) -> None:
    note = controller.folder / "calls"
    for program in ("sacct", "sacctmgr"):
        script = controller.folder / program
        script.write_text(script.read_text().replace("#!/bin/sh\n", f'#!/bin/sh\nprintf "%s\\n" "$*" >>{note}\n', 1))
    controller.answer(f'printf "%s\\n" "$*" >>{note}; echo JS1:AbC==')
    assert controller.run("gpudeck-epilog.sh", **others) == 0
    assert controller.comment.read_text().strip() == "JS1:AbC=="
    read = f"-n -P -X -j {name} -o AdminComment"
    write = f'-i modify job where jobid={name} set AdminComment="JS1:AbC=="'
    report = f"job {name} --jobstats --hub http://127.0.0.1:1"
    assert note.read_text().splitlines() == ["--version", read, report, write, read]


def test_an_epilog_leaves_a_comment_as_it_is(controller: Controller) -> None:
    controller.comment.write_text("Ticket #15: 'Big' Run")
    controller.answer("echo JS1:AbC==")
    assert controller.run("gpudeck-epilog.sh") == 0
    assert controller.comment.read_text() == "Ticket #15: 'Big' Run"


def test_a_comment_that_cannot_be_read_is_not_written(controller: Controller) -> None:
    controller.fail("sacct")
    controller.answer("echo JS1:AbC==")
    assert controller.run("gpudeck-epilog.sh") == 0
    assert controller.comment.read_text() == ""


def test_a_summary_that_slurm_does_not_keep_as_it_is_is_removed(controller: Controller) -> None:
    controller.write_programs(lower=True)
    controller.answer("echo JS1:AbC==")
    assert controller.run("gpudeck-epilog.sh") == 0
    assert controller.comment.read_text().strip() == ""


@pytest.mark.parametrize("printed", ["JS1:None", "no such job", ""])
def test_without_a_summary_nothing_is_written(controller: Controller, printed: str) -> None:
    controller.answer(f"echo '{printed}'")
    assert controller.run("gpudeck-epilog.sh") == 0
    assert controller.comment.read_text() == ""


def test_a_prolog_refuses_a_job_where_the_verdict_is_drain_alone(controller: Controller) -> None:
    controller.answer("printf 'drain\\nGPU 1: XID 79: it fell off the bus\\n'; exit 0")
    assert controller.run_prolog() == 1
    assert "GPU 1: XID 79" in controller.log("logger")


@pytest.mark.parametrize(
    "program",
    [
        "echo ok",
        "echo unknown",
        "echo drainage",
        "echo Traceback; exit 1",
        "exit 1",
        "kill -9 $$",
        "echo drain; exec sleep 100",
    ],
)
def test_a_prolog_lets_the_job_start_whatever_else_happens(controller: Controller, program: str) -> None:
    controller.answer(program)
    assert controller.run_prolog() == 0
    assert controller.log("logger") == ""


def test_a_prolog_without_a_hub_or_a_program_lets_the_job_start(controller: Controller, hanging_hub: str) -> None:
    assert controller.run_prolog() == 0
    controller.set(hanging_hub)
    assert controller.run_prolog() == 0
    (controller.folder / "gpudeck").unlink()
    assert controller.run_prolog() == 0
