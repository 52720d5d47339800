"""Logins over SSH: keys, passwords, host keys, jump hosts, and the words for each that fails. A real sshd."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.sshd import IS_HERE, WHY_NOT, Sshd, make_key, running_sshd
from gpudeck.model.errors import PluginError, Refused, Temporary
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, SshSettings
from gpudeck.sources.ssh import make
from sources.scrape_pages import send, web_server

pytestmark = pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)

RELAY = """
import os, socket, sys, threading
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send():
    while part := os.read(0, 65536):
        server.sendall(part)
threading.Thread(target=send, daemon=True).start()
while part := server.recv(65536):
    os.write(1, part)
"""


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with an empty .ssh, and no ssh-agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


def read(settings: SshSettings, target: Target, password: str | None = None) -> FetchedReport:
    async def go() -> FetchedReport:
        source = make(settings, password)(target)
        try:
            return await source.read(time.time())
        finally:
            await source.close()

    return asyncio.run(go())


def failure(settings: SshSettings, target: Target, password: str | None = None) -> PluginError:
    with pytest.raises(PluginError) as caught:
        read(settings, target, password)
    return caught.value


def fingerprint(key: Path) -> str:
    line = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True).stdout
    return line.split()[1]


def use_home(sshd: Sshd, home: Path, config: str = "") -> None:
    """Make the home that of somebody who can log in with ssh alone."""
    shutil.copy(sshd.key, home / ".ssh/id_ed25519")
    shutil.copy(sshd.known_hosts, home / ".ssh/known_hosts")
    (home / ".ssh/config").write_text(config)


def test_keys_and_known_hosts_of_the_home_folder_are_used(sshd: Sshd, home: Path) -> None:
    use_home(sshd, home)
    assert read(SshSettings(), sshd.target()).envelope.host == "gpu01"


def test_ssh_config_says_address_port_user_and_key(sshd: Sshd, home: Path) -> None:
    use_home(sshd, home)
    (home / ".ssh/id_ed25519").rename(home / ".ssh/other")
    (home / ".ssh/config").write_text(
        f"Host gpu*\n HostName 127.0.0.1\n Port {sshd.port}\n User {sshd.user}\n IdentityFile ~/.ssh/other\n"
        " RemoteCommand reboot\n RequestTTY force\n SendEnv *\n"
    )
    assert read(SshSettings(), Target(name="gpu01")).envelope.host == "gpu01"


def test_proxy_command_is_used(sshd: Sshd, home: Path) -> None:
    (home / "relay.py").write_text(RELAY)
    use_home(sshd, home, f"Host gpu01\n ProxyCommand {sys.executable} {home}/relay.py {sshd.port}\n")
    (home / ".ssh/known_hosts").write_text(sshd.known_hosts.read_text().replace(f"[127.0.0.1]:{sshd.port}", "gpu01"))
    assert read(SshSettings(), Target(name="gpu01")).envelope.host == "gpu01"


def test_only_blocks_that_can_be_meant_count_and_mistakes_keep_their_line(sshd: Sshd, home: Path) -> None:
    use_home(sshd, home, f"Host gpu02\n Port 1\nHost gpu01\n Port {sshd.port}\nMatch final\n Compression no\n")
    with (home / ".ssh/config").open("a") as file:
        file.write("Host gpu0?\n HostName 127.0.0.1\nHost gpu03\n Port many\n")
    assert read(SshSettings(), Target(name="gpu01")).envelope.host == "gpu01"
    assert f"{home}/.ssh/config line 10: Invalid Port" in str(failure(SshSettings(), Target(name="gpu03")))


def test_wrong_key_is_refused_with_user_keys_and_next_step(sshd: Sshd, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    error = failure(sshd.settings(key_files=[str(other)]), sshd.target())
    assert isinstance(error, Refused)
    assert str(error) == (
        f"gpu01 (127.0.0.1:{sshd.port}) does not let {sshd.user} in (keys tried: {other}). "
        f"Install a key: ssh-copy-id -p {sshd.port} {sshd.user}@127.0.0.1"
    )


def test_key_with_a_passphrase_names_ssh_add(sshd: Sshd, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", "secret")
    error = failure(sshd.settings(key_files=[str(locked)]), sshd.target())
    assert isinstance(error, Refused)
    assert error.hint == f"Unlock the key first: ssh-add {locked}"
    assert f"not usable without their passphrase: {locked}" in error.message


def test_named_key_files_are_tried_and_no_others(sshd: Sshd, home: Path) -> None:
    use_home(sshd, home)
    locked = make_key(home / "locked", "secret")
    assert isinstance(failure(SshSettings(key_files=[str(locked)]), sshd.target()), Refused)
    assert sshd.logins() == 0


def test_key_with_a_passphrase_works_through_the_agent(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = make_key(tmp_path / "locked", "secret")
    (sshd.folder / "authorized_keys").write_text(Path(f"{locked}.pub").read_text())
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL) as agent:
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
            (tmp_path / "ask").write_text("#!/bin/sh\necho secret\n")
            (tmp_path / "ask").chmod(0o755)
            subprocess.run(
                ["sh", "-c", f'until [ -S "$SSH_AUTH_SOCK" ]; do sleep 0.05; done; ssh-add {locked} </dev/null'],
                env=os.environ | {"SSH_ASKPASS": str(tmp_path / "ask"), "SSH_ASKPASS_REQUIRE": "force"},
                check=True,
                capture_output=True,
                timeout=20,
            )
            arrival = read(sshd.settings(key_files=[str(locked)], agent=True), sshd.target())
            refused = failure(sshd.settings(key_files=[str(locked)], agent=False), sshd.target())
        finally:
            agent.terminate()
    assert arrival.envelope.host == "gpu01"
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("files", [["absent"], ["authorized_keys.txt"]])
def test_key_file_that_is_none_is_refused(sshd: Sshd, tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "authorized_keys.txt").write_text("nonsense")
    error = failure(sshd.settings(key_files=[str(tmp_path / file) for file in files]), sshd.target())
    assert isinstance(error, Refused)
    assert files[0] in str(error)


def test_unknown_host_key_is_refused_with_fingerprint_and_next_step(sshd: Sshd, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    error = failure(sshd.settings(known_hosts=[str(empty)]), sshd.target())
    assert isinstance(error, Refused)
    assert str(error) == (
        f"gpu01 (127.0.0.1:{sshd.port})'s host key is not known ({fingerprint(sshd.folder / 'host')}, ed25519). "
        f"If it is the right one: ssh-keyscan -p {sshd.port} 127.0.0.1 >> {empty}"
        f"  or  ssh -p {sshd.port} {sshd.user}@127.0.0.1 once."
    )
    assert not empty.exists()


def test_next_step_for_an_unknown_host_key_helps(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    settings = sshd.settings(known_hosts=[str(known)])
    scan = failure(settings, sshd.target()).hint.split(": ", 1)[1].split("  or  ")[0]
    subprocess.run(["sh", "-c", scan], check=True, capture_output=True, timeout=20)
    assert read(settings, sshd.target()).envelope.host == "gpu01"


def test_next_step_for_an_unknown_host_key_makes_the_folder_that_is_not_there(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "new" / "known"
    settings = sshd.settings(known_hosts=[str(known)])
    scan = failure(settings, sshd.target()).hint.split(": ", 1)[1].split("  or  ")[0]
    subprocess.run(["sh", "-c", scan], check=True, capture_output=True, timeout=20)
    assert read(settings, sshd.target()).envelope.host == "gpu01"


def test_without_any_key_the_next_step_begins_with_making_one(sshd: Sshd, home: Path) -> None:
    use_home(sshd, home)
    (home / ".ssh/id_ed25519").unlink()
    error = failure(SshSettings(agent=False), sshd.target())
    assert "no key was there to try" in error.message
    install = f"ssh-copy-id -p {sshd.port} {sshd.user}@127.0.0.1"
    assert error.hint == f"Make a key: ssh-keygen -t ed25519  and then: {install}"


def test_port_of_another_program_is_told_from_an_sshd_that_closes(sshd: Sshd) -> None:
    with web_server(lambda handler: send(handler, b"", 400)) as port:
        error = failure(sshd.settings(), sshd.target(port=port))
    assert isinstance(error, Temporary)
    assert f"does not greet as an sshd does: another program listens on port {port}" in error.message


def test_configuration_that_wants_no_check_does_not_get_its_way(sshd: Sshd, home: Path) -> None:
    use_home(sshd, home, "Host *\n StrictHostKeyChecking no\n UserKnownHostsFile none\n")
    (home / ".ssh/known_hosts").unlink()
    assert "host key is not known" in str(failure(SshSettings(), sshd.target()))


def test_new_host_key_is_written_once_if_that_is_wanted(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "new/known_hosts"
    settings = sshd.settings(known_hosts=[str(known)], host_keys="accept-new")
    read(settings, sshd.target())
    read(settings, sshd.target())
    assert known.read_text() == sshd.known_hosts.read_text()
    assert known.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_changed_host_key_is_never_accepted(sshd: Sshd, host_keys: str) -> None:
    old = fingerprint(sshd.folder / "host")
    before = sshd.known_hosts.read_text()
    sshd.change_host_key()
    sshd.restart()
    error = failure(sshd.settings(host_keys=host_keys), sshd.target())
    assert isinstance(error, Refused)
    assert "another host key than before" in error.message
    assert f"it was {old}, ed25519 and is {fingerprint(sshd.folder / 'host')}, ed25519" in error.message
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}' -f {sshd.known_hosts}" in error.hint
    assert sshd.known_hosts.read_text() == before


def test_known_hosts_are_read_again_after_a_change(sshd: Sshd) -> None:
    sshd.change_host_key()
    sshd.restart()
    settings = sshd.settings()

    async def go() -> FetchedReport:
        source = make(settings)(sshd.target())
        with pytest.raises(Refused):
            await source.read(time.time())
        sshd.known_hosts.unlink()
        sshd.change_host_key()
        await asyncio.to_thread(sshd.restart)
        arrival = await source.read(time.time())
        await source.close()
        return arrival

    assert asyncio.run(go()).envelope.sequence == 1


def test_line_that_is_no_known_host_hides_no_other(sshd: Sshd) -> None:
    sshd.known_hosts.write_text(f"nonsense\n@what is this\n|1|x|y ssh-rsa AAAA\n{sshd.known_hosts.read_text()}")
    assert read(sshd.settings(), sshd.target()).envelope.host == "gpu01"


@pytest.fixture
def authority(sshd: Sshd, tmp_path: Path) -> Path:
    """Somebody who vouches for the host: its certificate is shown to whoever asks for one."""
    key = make_key(tmp_path / "authority")
    command = ["ssh-keygen", "-q", "-s", str(key), "-I", "host", "-h", "-n", "127.0.0.1", str(sshd.folder / "host.pub")]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    sshd.restart(f"HostCertificate {sshd.folder}/host-cert.pub")
    return key


def test_host_with_a_certificate_is_believed_if_its_authority_is_known(sshd: Sshd, authority: Path) -> None:
    sshd.known_hosts.write_text(f"@cert-authority *,[127.0.0.1]:* {Path(f'{authority}.pub').read_text()}")
    assert read(sshd.settings(), sshd.target()).envelope.host == "gpu01"


@pytest.mark.usefixtures("authority")
def test_host_with_a_certificate_of_somebody_unknown_is_known_by_its_key(sshd: Sshd, tmp_path: Path) -> None:
    assert read(sshd.settings(), sshd.target()).envelope.host == "gpu01"
    error = failure(sshd.settings(known_hosts=[str(tmp_path / "empty")]), sshd.target())
    assert f"host key is not known ({fingerprint(sshd.folder / 'host')}, ed25519)" in str(error)


def test_key_of_another_port_of_the_same_host_is_not_believed(sshd: Sshd) -> None:
    sshd.known_hosts.write_text(sshd.known_hosts.read_text().replace(f"[127.0.0.1]:{sshd.port}", "127.0.0.1"))
    assert "host key is not known" in str(failure(sshd.settings(), sshd.target()))


def test_closed_port_unknown_name_and_silent_host_are_told_apart(sshd: Sshd) -> None:
    closed = failure(sshd.settings(), sshd.target(port=free_port()))
    unknown = failure(sshd.settings(), Target(name="gpu01", address="no-such-host.invalid"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        silent = failure(sshd.settings(deadline=3.0), sshd.target(port=listener.getsockname()[1]))
    assert {type(error) for error in (closed, unknown, silent)} == {Temporary}
    assert "refuses connections" in str(closed)
    assert str(unknown).startswith("The name no-such-host.invalid is not known to the name service.")
    assert "takes the connection, but no login is finished in time" in str(silent)


def test_server_that_is_no_sshd_is_a_temporary_failure(sshd: Sshd) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        script = "read line; printf 'HTTP/1.0 400 Bad Request\\r\\n\\r\\n'"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                subprocess.run(["sh", "-c", script], stdin=connection, stdout=connection, timeout=10, check=False)

        async def go() -> PluginError:
            source = make(sshd.settings(deadline=3.0))(sshd.target(port=port))
            answering = asyncio.create_task(asyncio.to_thread(answer))
            with pytest.raises(PluginError) as caught:
                await source.read(time.time())
            await source.close()
            await answering
            return caught.value

        assert isinstance(asyncio.run(go()), Temporary)


@pytest.fixture
def person(sshd: Sshd) -> Iterator[str]:
    """A user of this system with a password and no home folder, gone after the test."""
    name = f"gpudeck{os.getpid()}"
    hashed = subprocess.run(["openssl", "passwd", "-6", "right"], capture_output=True, text=True, check=True)
    made = subprocess.run(
        ["useradd", "-M", "-d", "/nonexistent", "-s", "/bin/sh", "-p", hashed.stdout.strip(), name],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip(f"no user can be made here: {made.stderr.decode()}")
    sshd.restart("PasswordAuthentication yes")
    sshd.folder.parent.chmod(0o755)
    yield name
    sshd.stop()
    subprocess.run(["userdel", "-f", name], check=False, capture_output=True)


def test_password_from_a_file_logs_in(sshd: Sshd, tmp_path: Path, person: str) -> None:
    (tmp_path / "password").write_text("right\n")
    settings = sshd.settings(user=person, password_file=str(tmp_path / "password"))
    assert read(settings, sshd.target()).envelope.host == "gpu01"


def test_typed_password_logs_in_and_is_in_no_message(sshd: Sshd, person: str) -> None:
    assert read(sshd.settings(user=person), sshd.target(), "right").envelope.host == "gpu01"
    error = failure(sshd.settings(user=person), sshd.target(), "wrong-secret")
    assert isinstance(error, Refused)
    assert "the password was not accepted either" in str(error)
    assert "wrong-secret" not in str(error)


@pytest.mark.skipif(not Path("/etc/pam.d/sshd").exists(), reason="needs PAM")
def test_password_logs_in_where_the_host_asks_for_it_in_words(sshd: Sshd, person: str) -> None:
    sshd.restart("UsePAM yes\nKbdInteractiveAuthentication yes\nPasswordAuthentication no")
    assert read(sshd.settings(user=person), sshd.target(), "right").envelope.host == "gpu01"
    assert "Accepted keyboard-interactive/pam for" in sshd.log.read_text()


def test_nothing_is_written_on_the_host(sshd: Sshd, person: str) -> None:
    before = files_of(person)
    read(sshd.settings(user=person), sshd.target(), "right")
    assert files_of(person) <= before


def files_of(person: str) -> set[str]:
    """Where everybody may write: this user has no home. Another program may have left some with the same number of a
    user."""
    search = ["find", "/tmp", "/var/tmp", "/dev/shm", "/run", "-maxdepth", "3", "-user", person]
    return set(subprocess.run(search, capture_output=True, text=True, check=False).stdout.splitlines())


@pytest.fixture
def bastion(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "bastion") as server:
        yield server


def move(sshd: Sshd, address: str) -> None:
    """Let it listen elsewhere on this machine, and be known there."""
    sshd.restart(f"ListenAddress {address}")
    sshd.known_hosts.write_text(sshd.known_hosts.read_text().replace("127.0.0.1", address))


def behind(sshd: Sshd, bastion: Sshd, **others: object) -> SshSettings:
    """Settings that know both, whose keys are those of both."""
    known = [str(sshd.known_hosts), str(bastion.known_hosts)]
    return sshd.settings(**({"known_hosts": known, "key_files": [str(sshd.key), str(bastion.key)]} | others))


def test_hosts_behind_a_jump_host_share_one_login_to_it(sshd: Sshd, bastion: Sshd) -> None:
    settings = behind(sshd, bastion, jump=f"{bastion.user}@127.0.0.1:{bastion.port}")

    async def go() -> list[FetchedReport]:
        make_source = make(settings)
        # The hosts are called by another name than the jump host, which is reached without itself.
        sources = [make_source(sshd.target(name, address="127.0.0.2")) for name in ("gpu01", "gpu02", "gpu03")]
        try:
            return await asyncio.gather(*(source.read(time.time()) for source in sources))
        finally:
            await asyncio.gather(*(source.close() for source in sources))

    move(sshd, "127.0.0.2")
    assert [arrival.envelope.host for arrival in asyncio.run(go())] == ["gpu01", "gpu02", "gpu03"]
    assert (bastion.logins(), sshd.logins()) == (1, 3)


def test_jump_hosts_stand_one_behind_the_other(sshd: Sshd, bastion: Sshd, tmp_path: Path) -> None:
    move(sshd, "127.0.0.3")
    with running_sshd(tmp_path / "second") as second:
        move(second, "127.0.0.2")
        servers = (sshd, bastion, second)
        settings = sshd.settings(
            known_hosts=[str(server.known_hosts) for server in servers],
            key_files=[str(server.key) for server in servers],
            jump=f"127.0.0.1:{bastion.port}, 127.0.0.2:{second.port}",
        )
        assert read(settings, sshd.target(address="127.0.0.3")).envelope.host == "gpu01"
        assert [server.logins() for server in servers] == [1, 1, 1]


def test_proxy_jump_of_ssh_config_is_used(sshd: Sshd, bastion: Sshd, home: Path) -> None:
    (home / ".ssh/config").write_text(
        f"Host gpu01\n HostName 127.0.0.1\n Port {sshd.port}\n ProxyJump outside\n IdentityFile {sshd.key}\n"
        f"Host outside\n HostName 127.0.0.1\n Port {bastion.port}\n IdentityFile {bastion.key}\n"
    )
    (home / ".ssh/known_hosts").write_text(sshd.known_hosts.read_text() + bastion.known_hosts.read_text())
    assert read(SshSettings(), Target(name="gpu01")).envelope.host == "gpu01"
    assert (bastion.logins(), sshd.logins()) == (1, 1)


def test_unknown_key_of_a_jump_host_names_that_host(sshd: Sshd, bastion: Sshd) -> None:
    jump = f"127.0.0.1:{bastion.port}"
    settings = behind(sshd, bastion, known_hosts=[str(sshd.known_hosts)])
    error = failure(settings, sshd.target(jump=jump))
    assert isinstance(error, Refused)
    assert error.message.startswith(f"The jump host 127.0.0.1:{bastion.port}'s host key is not known")


def test_unknown_key_behind_a_jump_host_gives_the_way_through_it(sshd: Sshd, bastion: Sshd) -> None:
    jump = f"127.0.0.1:{bastion.port}"
    error = failure(behind(sshd, bastion, known_hosts=[str(bastion.known_hosts)]), sshd.target(jump=jump))
    assert error.message.startswith(f"gpu01 (127.0.0.1:{sshd.port})'s host key is not known")
    assert error.hint == f"If it is the right one: ssh -J {jump} -p {sshd.port} {sshd.user}@127.0.0.1 once."


def test_host_that_a_jump_host_cannot_reach_says_so(sshd: Sshd, bastion: Sshd) -> None:
    jump = f"127.0.0.1:{bastion.port}"
    error = failure(behind(sshd, bastion), sshd.target(jump=jump, port=free_port()))
    assert isinstance(error, Temporary)
    assert f"cannot be reached from the jump host {jump}: the connection failed" in str(error)


def test_jump_host_that_dies_is_opened_again(sshd: Sshd, bastion: Sshd) -> None:
    async def go() -> FetchedReport:
        source = make(behind(sshd, bastion))(sshd.target(jump=f"127.0.0.1:{bastion.port}"))
        await source.read(time.time())
        await asyncio.to_thread(bastion.kill_connections)
        with contextlib.suppress(Temporary):
            await source.read(time.time())
        arrival = await source.read(time.time())
        await source.close()
        return arrival

    assert asyncio.run(go()).envelope.host == "gpu01"
    assert bastion.logins() == 2


def test_jump_hosts_that_lead_in_a_circle_are_refused(home: Path) -> None:
    (home / ".ssh/config").write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    error = failure(SshSettings(), Target(name="a"))
    assert isinstance(error, Refused)
    assert "lead in a circle" in str(error)


def test_named_ssh_config_has_to_be_there(sshd: Sshd, tmp_path: Path) -> None:
    error = failure(sshd.settings(config_file=str(tmp_path / "absent")), sshd.target())
    assert isinstance(error, Refused)
    assert str(error) == f"{tmp_path}/absent cannot be read: No such file or directory. Mend ssh.config_file."


def test_broken_ssh_config_names_its_line(home: Path) -> None:
    (home / ".ssh/config").write_text("Host *\n Port many\n")
    error = failure(SshSettings(), Target(name="gpu01"))
    assert isinstance(error, Refused)
    assert "config line 2" in str(error)
