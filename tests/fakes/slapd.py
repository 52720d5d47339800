"""A real OpenLDAP server on loopback, with users, nested groups, and a certificate of a test's authority."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.certificates import Authority
from fakes.ports import free_port
from fakes.waiting import wait_until

BASE = "dc=ex,dc=org"
PEOPLE, GROUPS = f"ou=people,{BASE}", f"ou=groups,{BASE}"
SERVICE, SERVICE_PASSWORD = f"cn=gpudeck,{BASE}", "service-secret"
PASSWORD = "correct horse battery"
_SCHEMAS = Path("/etc/ldap/schema")
_CONFIG = """
include {schemas}/core.schema
include {schemas}/cosine.schema
include {schemas}/nis.schema
include {schemas}/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/pid
TLSCACertificateFile {ca}
TLSCertificateFile {certificate}
TLSCertificateKeyFile {certificate}
database mdb
suffix "{base}"
rootdn "cn=root,{base}"
rootpw root-secret
directory {folder}/db
index uid,member,entryUUID eq
access to attrs=userPassword by anonymous auth by * none
access to * by users read by anonymous auth
"""
_PERSON = """
dn: uid={uid},{people}
objectClass: inetOrgPerson
objectClass: shadowAccount
uid: {uid}
cn: {cn}
sn: {cn}
mail: {uid}@ex.org
userPassword: {password}
"""
_GROUP = "\ndn: cn={name},{groups}\nobjectClass: groupOfNames\ncn: {name}\n{members}\n"
_LDIF = f"""
dn: {BASE}
objectClass: domain
dc: ex

dn: {PEOPLE}
objectClass: organizationalUnit
ou: people

dn: {GROUPS}
objectClass: organizationalUnit
ou: groups

dn: {SERVICE}
objectClass: applicationProcess
objectClass: simpleSecurityObject
cn: gpudeck
userPassword: {SERVICE_PASSWORD}
"""


def person(uid: str, cn: str = "Somebody") -> str:
    return _PERSON.format(uid=uid, cn=cn, people=PEOPLE, password=PASSWORD)


def group(name: str, *members: str) -> str:
    """Members are logins, or groups as `cn=NAME`."""
    dns = [f"{one},{GROUPS}" if one.startswith("cn=") else f"uid={one},{PEOPLE}" for one in members]
    return _GROUP.format(name=name, groups=GROUPS, members="\n".join(f"member: {dn}" for dn in dns))


class Slapd:
    """`stop` and `start` it as often as needed; `modify` changes entries while it runs."""

    def __init__(self, folder: Path, entries: str) -> None:
        self.folder = folder
        self.authority = Authority(folder, "LDAP Authority")
        self.port, self.tls_port = free_port(), free_port()
        self.url, self.tls_url = f"ldap://127.0.0.1:{self.port}", f"ldaps://127.0.0.1:{self.tls_port}"
        self.password_file = folder / "service-password"
        self.password_file.write_text(f"{SERVICE_PASSWORD}\n")
        self.authority.server_context("127.0.0.1")
        (folder / "db").mkdir()
        certificate = folder / "127.0.0.1.pem"
        self._config = folder / "slapd.conf"
        values = {"schemas": _SCHEMAS, "folder": folder, "base": BASE, "ca": self.authority.ca_file}
        self._config.write_text(_CONFIG.format(certificate=certificate, **values))
        ldif = folder / "entries.ldif"
        ldif.write_text(_LDIF + entries)
        subprocess.run([_find("slapadd"), "-f", self._config, "-l", ldif], check=True, capture_output=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [_find("slapd"), "-d", "0", "-f", str(self._config), "-h", f"{self.url} {self.tls_url}"]
        with (self.folder / "slapd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._answers, "slapd")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def modify(self, changes: str) -> None:
        """In LDIF."""
        command = ["ldapmodify", "-x", "-H", self.url, "-D", f"cn=root,{BASE}", "-w", "root-secret"]
        subprocess.run(command, input=changes.encode(), check=True, capture_output=True)

    def _answers(self) -> bool:
        asked = ["ldapsearch", "-x", "-H", self.url, "-D", SERVICE, "-w", SERVICE_PASSWORD, "-b", BASE, "-s", "base"]
        return subprocess.run(asked, check=False, capture_output=True).returncode == 0


def _find(name: str) -> str:
    found = shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if found is None or shutil.which("ldapsearch") is None or not _SCHEMAS.exists():
        pytest.skip("no OpenLDAP server here (Debian, Ubuntu: apt install slapd ldap-utils)")
    return found


@contextlib.contextmanager
def running_slapd(folder: Path, entries: str) -> Iterator[Slapd]:
    folder.mkdir(parents=True, exist_ok=True)
    server = Slapd(folder, entries)
    server.start()
    try:
        yield server
    finally:
        server.stop()
