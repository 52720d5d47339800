"""A real Slurm cluster on one machine: munged, slurmctld and two slurmd, with device files in place of GPUs."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until

NODES = ("n1", "n2")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "squeue", "scontrol", "sbatch")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_CONFIG = """\
ClusterName=deck
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
{tracking}
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SwitchType=switch/none
MailProg=/bin/true
{extra}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=8 RealMemory=4000 Gres={gres}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=8 RealMemory=4000 Gres={gres}
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=60 State=UP
"""


_DATABASE_CONFIG = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={daemon}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile={folder}/dbd.log
PidFile={folder}/dbd.pid
CommunicationParameters=NoInAddrAny
"""
_ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={daemon}
AccountingStoragePass={folder}/munge/sock
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
"""
_GRANT = "CREATE USER slurm@'{0}' IDENTIFIED BY 'slurm'; GRANT ALL ON *.* TO slurm@'{0}';"
_TRACKING = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none"""
_CGROUP_TRACKING = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup"""
_CGROUPS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=yes
ConstrainRAMSpace=yes
"""
BACKUP = "SlurmctldHost=backup(127.0.0.2)\nSlurmctldTimeout=5"


class SlurmCluster:
    """`start` and `close`; `extra` are more lines of slurm.conf, `shards` how many each GPU has. With
    `has_accounting` ended jobs are in a database; with `has_cgroups` jobs have cgroups (v1) and may use the memory that
    they ask for: the groups are named by the nodes, so there is one such cluster at a time. Jobs only sleep."""

    def __init__(
        self,
        folder: Path,
        extra: str = "",
        *,
        shards: int = 0,
        has_accounting: bool = False,
        has_cgroups: bool = False,
    ) -> None:
        self.folder = folder
        self._database_ports = (free_port(), free_port()) if has_accounting else None
        if self._database_ports:
            extra += _ACCOUNTING.format(folder=folder, daemon=self._database_ports[0])
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = {name: free_port() for name in ("controller", *NODES)}
        for name in ("munge", "state", "jobs", *(f"{kind}/{node}" for kind in ("spool", "dev") for node in NODES)):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "munge").chmod(0o755)
        (folder / "jobs").chmod(0o777)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        gres = f"gpu:h100:4,shard:h100:{4 * shards}" if shards else "gpu:h100:4"
        tracking = _CGROUP_TRACKING if has_cgroups else _TRACKING
        text = _CONFIG.format(host=host, folder=folder, extra=extra, gres=gres, tracking=tracking, **ports)
        self._has_cgroups = has_cgroups
        if has_cgroups:
            text = text.replace("=CR_Core\n", "=CR_Core_Memory\nDefMemPerNode=500\n")
            (folder / "cgroup.conf").write_text(_CGROUPS)
        (folder / "slurm.conf").write_text(text)
        lines = [f"NodeName={node} Name=gpu Type=h100 File={folder}/dev/{node}/nvidia[0-3]" for node in NODES]
        lines += [
            f"NodeName={node} Name=shard Type=h100 Count={shards} File={folder}/dev/{node}/nvidia{number}"
            for node in NODES
            for number in range(4 if shards else 0)
        ]
        (folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *lines, ""]))
        for node in NODES:
            for number in range(4):
                os.mknod(folder / "dev" / node / f"nvidia{number}", 0o020666, os.makedev(195, number))
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def start(self) -> None:
        files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder / 'munge' / name}" for option, name in files.items()]
        # --force: a temporary folder may be writable by others.
        self._spawn("munged", "munged", "--foreground", "--force", *options)
        wait_until((self.folder / "munge" / "sock").exists, "munge's socket")
        if self._database_ports:
            self._start_database(*self._database_ports)
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], "idle nodes", 60)

    def start_controller(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D")
        wait_until(lambda: not self.try_to_run("scontrol", "ping").returncode, "the controller's start", 60)

    def _start_database(self, daemon: int, database: int) -> None:
        folder = self.folder / "database"
        folder.mkdir()
        shutil.chown(folder, "mysql")
        where = ("--no-defaults", f"--datadir={folder}", "--user=mysql")
        self.run("mariadb-install-db", *where, "--auth-root-authentication-method=normal", "--skip-test-db")
        listens = (f"--socket={folder}/sock", f"--port={database}", "--bind-address=127.0.0.1")
        self._spawn("mariadbd", "mariadbd", *where, *listens)
        grant = "".join(_GRANT.format(host) for host in ("localhost", "127.0.0.1"))
        client = ("mariadb", "--no-defaults", f"--socket={folder}/sock", "--user=root", f"--execute={grant}")
        wait_until(lambda: not self.try_to_run(*client).returncode, "the database", 60)
        config = self.folder / "slurmdbd.conf"
        config.write_text(_DATABASE_CONFIG.format(folder=self.folder, daemon=daemon, database=database))
        config.chmod(0o600)
        self._spawn("slurmdbd", "slurmdbd", "-D")
        add = ("sacctmgr", "-i", "add", "cluster", "deck")
        wait_until(lambda: not self.try_to_run(*add).returncode, "slurmdbd", 60)

    def start_backup(self) -> None:
        """A second controller for `extra=BACKUP`. It needs a name and an address of its own, and only here."""
        hosts, folder = self.folder / "hosts", self.folder / "backup"
        hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.2 backup\n")
        folder.mkdir()
        shutil.copy(self.folder / "gres.conf", folder)
        config = (self.folder / "slurm.conf").read_text().replace("/ctld.", "/backup.")
        (folder / "slurm.conf").write_text(config)
        start = f"mount --bind {hosts} /etc/hosts && hostname backup && exec env SLURM_CONF={folder}/slurm.conf"
        self._spawn("backup", "unshare", "--uts", "--mount", "sh", "-c", f"{start} slurmctld -D")
        wait_until(lambda: "backup is UP" in self.run("scontrol", "ping"), "the second controller's start", 60)

    def kill(self, name: str) -> None:
        """Without a chance to save anything."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(10)

    def start_node(self, node: str) -> None:
        self._spawn(node, "slurmd", "-D", "-N", node)

    def stop(self, name: str) -> None:
        """`slurmctld`, or a node."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def submit(self, *options: str, seconds: int = 300) -> str:
        """The id of a new job."""
        output = f"--output={self.folder}/jobs/%j.out"
        return self.run("sbatch", "--parsable", output, *options, f"--wrap=exec sleep {seconds}").strip()

    def wait_for(self, job: str, state: str) -> None:
        wait_until(lambda: self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip() == state, state, 60)

    def clear(self) -> None:
        """No job, no drained node and no reservation is left."""
        self.cancel_all()
        for line in self.run("scontrol", "-o", "show", "reservation").splitlines():
            if line.startswith("ReservationName="):
                self.run("scontrol", "delete", line.split()[0])
        self.try_to_run("scontrol", "update", "NodeName=n1,n2", "State=RESUME")
        wait_until(lambda: not self.run("squeue", "-h"), "the end of all jobs", 60)
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], "idle nodes", 60)

    def cancel_all(self) -> None:
        """The jobs of all users."""
        self.try_to_run("scancel", *self.run("squeue", "-h", "-o", "%A").split())

    def run(self, *command: str) -> str:
        done = self.try_to_run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def try_to_run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )

    def close(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel_all()
            wait_until(lambda: not self.run("squeue", "-h"), "the end of all jobs")
        for name in (*NODES, "backup", "slurmctld", "slurmdbd", "mariadbd", "munged"):
            if name in self._processes:
                self.stop(name)
        if self._has_cgroups:
            for node in NODES:
                self.try_to_run("sh", "-c", f"find /sys/fs/cgroup/*/slurm_{node} -depth -type d -exec rmdir {{}} +")

    def _spawn(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )


@contextlib.contextmanager
def slurm_cluster(
    folder: Path, extra: str = "", *, shards: int = 0, has_accounting: bool = False, has_cgroups: bool = False
) -> Iterator[SlurmCluster]:
    programs = (*_PROGRAMS, *(("slurmdbd", "mariadbd") if has_accounting else ()))
    missing = [program for program in programs if shutil.which(program, path=_PATH) is None]
    if missing or os.getuid() != 0:
        pytest.skip(f"a Slurm cluster needs root and {', '.join(missing or programs)}: run tests/system-packages.sh")
    cluster = SlurmCluster(folder, extra, shards=shards, has_accounting=has_accounting, has_cgroups=has_cgroups)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
