"""The hub's own tables, the same on SQLite and PostgreSQL. A change here needs a migration. Times are Unix seconds.
Passwords are stored as argon2 hashes, tokens and cookies as SHA-256 of their 256 random bits."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite assigns ids only to a column of type INTEGER. Without sqlite_autoincrement below it would reuse the ids of
# deleted rows: an old id in a log or in a hub's memory must never refer to another row.
_Id = BigInteger().with_variant(Integer, "sqlite")

accounts = Table(
    "accounts",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    Column("password_hash", Text, nullable=True),  # none: logs in through a proxy alone
    Column("is_disabled", Integer, nullable=False, server_default="0"),
    Column("created_at", Float(53), nullable=False),
    Column("last_login_at", Float(53), nullable=True),
    CheckConstraint("role IN ('viewer', 'user', 'admin')", name="role"),
    sqlite_autoincrement=True,
)
"""Users. Names are login names in lower case."""

sessions = Table(
    "sessions",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("account_id", _Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("seen_at", Float(53), nullable=False),
    Column("address", String(64), nullable=False, server_default=""),
    Column("user_agent", String(256), nullable=False, server_default=""),
    Index("ix_sessions_account_id", "account_id"),
)
"""Login sessions, by the hash of the cookie."""

identities = Table(
    "identities",
    metadata,
    Column("provider", String(255), primary_key=True),  # the issuer, or ldap
    Column("subject", String(255), primary_key=True),
    Column("account_id", _Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("user_group", String(64), nullable=True),
    Column("mail", String(256), nullable=True),
    Column("created_at", Float(53), nullable=False),
    Column("checked_at", Float(53), nullable=False),  # when the provider last said so
    Index("ix_identities_account_id", "account_id"),
)
"""Users whom a provider identifies, and what it says about them."""

provider_grants = Table(
    "provider_grants",
    metadata,
    # Of the session that began with it; the session may be over, and the grant goes on for the user's tokens.
    Column("hash", String(64), primary_key=True),
    Column("account_id", _Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("provider", String(255), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("sid", String(255), nullable=True),  # the provider's own id of the session
    Column("sealed", Text, nullable=False, server_default=""),  # its tokens, encrypted
    Column("due_at", Float(53), nullable=False),  # when the provider is asked again
    Index("ix_provider_grants_due_at", "due_at"),
    Index("ix_provider_grants_account_id", "account_id"),
)
"""What OIDC providers issued at a login: with it the hub asks whether the user may continue."""

own_keys = Table(
    "own_keys",
    metadata,
    Column("name", String(64), primary_key=True),  # of the table whose rows it encrypts
    Column("key", String(64), nullable=False),
)
"""Keys that the first hub of a database makes, for all of them."""

login_trials = Table(
    "login_trials",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("created_at", Float(53), nullable=False),
    Column("body", Text, nullable=False),  # JSON
)
"""Trial logins of admins, for some minutes: in a cluster, another hub may be asked next."""

tokens = Table(
    "tokens",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("name", String(128), nullable=False),
    Column("role", String(16), nullable=False),
    Column("hosts", String(256), nullable=True),  # an agent's: the host, or the pattern of names, it may report as
    Column("account_id", _Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=True),
    Column("created_at", Float(53), nullable=False),
    Column("created_by", String(128), nullable=False, server_default=""),
    Column("expires_at", Float(53), nullable=True),
    Column("last_used_at", Float(53), nullable=True),
    Column("revoked_at", Float(53), nullable=True),
    CheckConstraint("role IN ('agent', 'viewer', 'user', 'admin', 'calendar')", name="role"),
    sqlite_autoincrement=True,
)
"""Tokens of agents, scripts and calendars."""

provider_blocks = Table(
    "provider_blocks",
    metadata,
    Column("account_id", _Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("reason", String(256), nullable=False),
)
"""Accounts that their provider disabled. Their tokens do not count, and LDAP accounts are disabled, until the next
login."""

device_logins = Table(
    "device_logins",
    metadata,
    Column("hash", String(64), primary_key=True),  # of the secret that the program keeps
    Column("user_code", String(16), nullable=False, unique=True),
    Column("name", String(128), nullable=False),
    Column("address", String(64), nullable=False, server_default=""),
    Column("created_at", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False),
    Column("token_seconds", Float(53), nullable=False),
    Column("port", Integer, nullable=True),  # where the program listens on the machine of the browser
    Column("code_hash", String(64), nullable=True),  # of what the browser takes there
    Column("account_id", _Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=True),  # who decided
    Column("is_denied", Integer, nullable=False, server_default="0"),
)
"""Logins of programs that wait for a user to confirm them on the page."""

audit = Table(
    "audit",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False),
    Column("who", String(160), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(256), nullable=False, server_default=""),
    Column("outcome", String(16), nullable=False, server_default="done"),
    Column("address", String(64), nullable=False, server_default=""),
    Column("details", Text, nullable=False, server_default=""),
    Index("ix_audit_at", "at"),
    sqlite_autoincrement=True,
)
"""The audit log: logins, writes, tokens, changes of the configuration. Rows are added and, when old, deleted: never
changed."""

events = Table(
    "events",
    metadata,
    Column("fleet", String(16), primary_key=True),  # `real`, or which simulated one
    Column("id", String(21), primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("host", String(256), nullable=True),
    Column("host_id", String(384), nullable=True),
    Column("gpu", String(256), nullable=True),
    Column("label", String(32), nullable=True),
    Column("user", String(256), nullable=True),
    Column("title", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default=""),
    Index("ix_events_at", "at"),
    Index("ix_events_fleet_kind_id", "fleet", "kind", "id"),
    Index("ix_events_fleet_host_id_id", "fleet", "host_id", "id"),
    Index("ix_events_fleet_host_id", "fleet", "host", "id"),
    Index("ix_events_fleet_gpu_id", "fleet", "gpu", "id"),
)
"""Events of the fleet. Ids begin with the time, so the primary key is the order of lists."""

reservations = Table(
    "reservations",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("fleet", String(16), nullable=False),  # as that of an event
    Column("kind", String(16), nullable=False),
    Column("user", String(160), nullable=False),
    Column("start", Float(53), nullable=False),
    Column("end", Float(53), nullable=False),
    Column("note", String(1000), nullable=False, server_default=""),
    Column("version", Integer, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("created_by", String(160), nullable=False),
    Column("changed_at", Float(53), nullable=False),
    Column("used_at", Float(53), nullable=True),
    Column("released_at", Float(53), nullable=True),
    Column("release_reason", String(256), nullable=True),
    CheckConstraint("kind IN ('reservation', 'claim')", name="kind"),
    Index("ix_reservations_fleet_end", "fleet", "end"),
    sqlite_autoincrement=True,
)
"""Reservations. The name of the user stays when the account is deleted."""

reservation_gpus = Table(
    "reservation_gpus",
    metadata,
    Column("reservation_id", _Id, ForeignKey("reservations.id", ondelete="CASCADE"), primary_key=True),
    Column("uuid", String(256), primary_key=True),
    Column("host", String(256), nullable=False),  # its name, and the GPU's number there, when it was reserved
    Column("label", String(32), nullable=False),
    Index("ix_reservation_gpus_uuid", "uuid"),
)
"""The GPUs of each reservation."""

maintenance = Table(
    "maintenance",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("fleet", String(16), nullable=False),  # as that of an event
    Column("host", String(256), nullable=False),  # its name when it was drained
    Column("host_id", String(384), nullable=False),
    Column("gpu", String(256), nullable=True),  # a UUID, and the GPU's number then; none: the whole host
    Column("label", String(32), nullable=True),
    Column("start", Float(53), nullable=False),
    Column("end", Float(53), nullable=True),  # none: until it is ended
    Column("reason", String(500), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("created_by", String(160), nullable=False),
    Index("ix_maintenance_fleet_end", "fleet", "end"),
    sqlite_autoincrement=True,
)
"""Maintenance windows: drained hosts and GPUs, with times and reasons."""

host_notes = Table(
    "host_notes",
    metadata,
    Column("fleet", String(16), primary_key=True),  # as that of an event
    Column("host_id", String(384), primary_key=True),
    Column("host", String(256), nullable=False),  # its name when the note was written
    Column("note", String(1000), nullable=False),
    Column("written_at", Float(53), nullable=False),
    Column("written_by", String(160), nullable=False),
)
"""Notes of admins on hosts, one short text each."""

idle_keeps = Table(
    "idle_keeps",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("fleet", String(16), nullable=False),  # as that of an event
    Column("gpu", String(256), nullable=False),  # a UUID
    Column("host", String(256), nullable=False),  # its name, and the GPU's number, then
    Column("label", String(32), nullable=False),
    Column("user", String(160), nullable=False),
    Column("start", Float(53), nullable=False),
    Column("end", Float(53), nullable=False),
    Column("reason", String(500), nullable=False),
    Index("ix_idle_keeps_fleet_end", "fleet", "end"),
    sqlite_autoincrement=True,
)
"""Idle GPUs that their owners keep."""

idle_ladders = Table(
    "idle_ladders",
    metadata,
    Column("fleet", String(16), primary_key=True),  # as that of an event
    Column("gpu", String(256), primary_key=True),
    Column("body", Text, nullable=False),  # JSON: since when it idles, and what was done
)
"""The steps of the idle policy taken for each idle GPU."""

digests = Table(
    "digests",
    metadata,
    Column("fleet", String(16), primary_key=True),  # as that of an event
    Column("period", String(16), primary_key=True),  # 2026-W46, 2026-11
    Column("recipient", String(64), primary_key=True),  # an account, or # and a channel
    Column("outcome", String(16), nullable=False),
    Column("done_at", Float(53), nullable=False),
)
"""Digests that were sent or skipped: each period once."""

queue_requests = Table(
    "queue_requests",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("fleet", String(16), nullable=False),  # as that of an event
    Column("key", String(64), nullable=False),  # the waiter's own: a repeated request is queued once
    Column("user", String(160), nullable=False),
    Column("account", String(64), nullable=True),
    Column("gpus", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=True),
    Column("model", String(256), nullable=True),
    Column("host", String(256), nullable=True),
    Column("near", String(256), nullable=True),
    Column("same_host", Integer, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("last_seen_at", Float(53), nullable=False),
    Column("granted", Text, nullable=True),  # JSON: the GPUs, until when, and the claim
    Column("mig", Integer, nullable=False, server_default="0"),
    Column("allow_mig", Integer, nullable=False, server_default="0"),
    UniqueConstraint("fleet", "key"),
    sqlite_autoincrement=True,
)
"""The queue: requests for GPUs, and what was granted to them until their process appears."""

vesta_hosts = Table(
    "vesta_hosts",
    metadata,
    Column("id", String(64), primary_key=True),  # what the sender was given, and posts to from then on
    Column("name", String(160), nullable=False, unique=True),
    Column("address", String(64), nullable=False, server_default=""),
    Column("created_at", Float(53), nullable=False),
    Column("seen_at", Float(53), nullable=False),  # to the hour
)
"""Registered vesta senders: a sender keeps its id when the hub restarts."""

vesta_spans = Table(
    "vesta_spans",
    metadata,
    Column("id", String(64), primary_key=True),  # the sender's, also where it is registered no more
    Column("start", Float(53), primary_key=True),
    Column("end", Float(53), nullable=False),
)
"""The imported time spans of vesta hosts, so that no sample is imported twice. Spans of one host do not touch."""

vesta_samples = Table(
    "vesta_samples",
    metadata,
    Column("id", String(64), primary_key=True),  # the sender's
    Column("at", Float(53), primary_key=True),
    Column("body", LargeBinary, nullable=False),  # its GPUs as JSON in vesta's words, zlib
)
"""The samples that vesta hosts posted or imported, at their own times: the newest 1,000 of each."""

outbox = Table(
    "outbox",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("fleet", String(16), nullable=False),  # as that of an event
    Column("key", String(256), nullable=False),  # which news it is: sent to each place once
    Column("destination", String(128), nullable=False),
    Column("channel", String(32), nullable=False),
    Column("account", String(64), nullable=True),  # for one person
    Column("message", Text, nullable=False),  # JSON; empty when it is done
    Column("state", String(16), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("due_at", Float(53), nullable=False),
    Column("claimed_until", Float(53), nullable=True),  # it is being sent
    Column("done_at", Float(53), nullable=True),
    Column("tries", Integer, nullable=False),
    Column("trouble", String(256), nullable=False, server_default=""),
    CheckConstraint("state IN ('waiting', 'sent', 'failed')", name="state"),
    UniqueConstraint("fleet", "key", "destination"),
    Index("ix_outbox_channel_state_due_at", "channel", "state", "due_at"),
    sqlite_autoincrement=True,
)
"""Messages to be delivered and, for a while, delivered ones."""

personal_mutes = Table(
    "personal_mutes",
    metadata,
    Column("account", String(64), primary_key=True),
    Column("rule", String(64), primary_key=True),
)

saved_views = Table(
    "saved_views",
    metadata,
    Column("account_id", _Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("views", Text, nullable=False),  # JSON
)

watches = Table(
    "watches",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("fleet", String(16), nullable=False),  # as that of an event
    Column("user", String(160), nullable=False),
    Column("account", String(64), nullable=True),
    Column("gpus", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=True),
    Column("model", String(256), nullable=True),
    Column("host", String(256), nullable=True),
    Column("same_host", Integer, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False),
    Column("fired_at", Float(53), nullable=True),
    Column("found", Text, nullable=True),  # JSON: the GPUs that were free then
    Column("mig", Integer, nullable=False, server_default="0"),
    Column("allow_mig", Integer, nullable=False, server_default="0"),
    Index("ix_watches_fleet_expires_at", "fleet", "expires_at"),
    sqlite_autoincrement=True,
)

alerts = Table(
    "alerts",
    metadata,
    Column("fleet", String(16), primary_key=True),  # as that of an event
    Column("id", String(16), primary_key=True),
    Column("rule", String(64), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("host", String(256), nullable=True),
    Column("host_id", String(384), nullable=False),
    Column("is_open", Integer, nullable=False),  # it fires, or its end has not been sent
    Column("fired_at", Float(53), nullable=False),
    Column("resolved_at", Float(53), nullable=True),
    Column("body", Text, nullable=False),  # JSON: all of it
    Index("ix_alerts_fleet_is_open", "fleet", "is_open"),
    Index("ix_alerts_resolved_at", "resolved_at"),
)

alert_mutes = Table(
    "alert_mutes",
    metadata,
    Column("fleet", String(16), primary_key=True),
    Column("id", String(16), primary_key=True),
    Column("end", Float(53), nullable=False),
    Column("body", Text, nullable=False),  # JSON: what it fits, who made it, and why
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),  # a hash of fleet, scheduler, job and start
    Column("fleet", String(16), nullable=False),  # as that of an event
    Column("scheduler", String(256), nullable=False),
    Column("job", String(512), nullable=False),  # the id that users know; empty: the jobs that are not known
    Column("start", Float(53), nullable=False),
    Column("name", String(256), nullable=True),
    Column("user", String(256), nullable=True),
    Column("account", String(256), nullable=True),
    Column("partition", String(256), nullable=True),
    Column("qos", String(256), nullable=True),
    Column("namespace", String(256), nullable=True),
    Column("labels", Text, nullable=True),  # JSON, by name
    Column("since", Float(53), nullable=True),  # when it started, where the scheduler says so
    Column("until", Float(53), nullable=True),
    Column("is_suspended", Integer, nullable=False, server_default="0"),
    Column("first_seen", Float(53), nullable=False),
    Column("last_seen", Float(53), nullable=False),
    Column("ended_at", Float(53), nullable=True),
    Column("outcome", String(64), nullable=True),
    Column("number", String(32), nullable=True),  # the scheduler's own, where users know it by another
    Index("ix_jobs_fleet_job", "fleet", "job"),
    Index("ix_jobs_fleet_number", "fleet", "number"),
    Index("ix_jobs_fleet_start", "fleet", "start"),
    Index("ix_jobs_last_seen", "last_seen"),
)
"""Jobs of schedulers: a row for each start of a job."""

job_gpus = Table(
    "job_gpus",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),  # a hash of the job's id and the UUID
    Column("job_id", _Id, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("uuid", String(256), nullable=False),
    Column("host", String(256), nullable=False),  # its name, and the GPU's number there, when it was allocated
    Column("host_id", String(384), nullable=False),
    Column("label", String(32), nullable=False),
    Column("model", String(256), nullable=False),
    Column("memory_bytes", BigInteger, nullable=True),
    Column("is_used", Integer, nullable=False, server_default="0"),  # the job used it at some time
    Column("is_shared", Integer, nullable=False, server_default="0"),  # others had it, or were on it, at the same time
    Index("ix_job_gpus_job_id", "job_id"),
)

job_usage = Table(
    "job_usage",
    metadata,
    Column("span", Integer, primary_key=True, autoincrement=False),  # an hour; a day of UTC where it is older
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("job_gpu_id", _Id, ForeignKey("job_gpus.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    *(
        Column(name, Float(53), nullable=False)
        for name in (
            *("allocated", "unobserved", "used", "active", "measured", "idle", "joules", "metered"),
            *("memory_sum", "memory_seconds", "memory_peak", "utilization_peak"),
        )
    ),
    Index("ix_job_usage_job_gpu_id", "job_gpu_id"),
    sqlite_with_rowid=False,
)
"""The hourly use of each GPU of a job: seconds, joules and byte-seconds. See `schedulers.jobs`."""

job_hosts = Table(
    "job_hosts",
    metadata,
    Column("job_id", _Id, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("host", String(256), primary_key=True),
    Column("read_at", Float(53), nullable=False),
    *(Column(name, Float(53), nullable=True) for name in ("cpu_seconds", "cpu_peak_cores", "cpu_limit_cores")),
    *(Column(name, Float(53), nullable=True) for name in ("memory_peak_bytes", "memory_limit_bytes")),
    *(Column(name, Float(53), nullable=False) for name in ("memory_sum", "memory_readings")),
    Column("reason", String(2048), nullable=True),
    sqlite_with_rowid=False,
)
"""CPU time and memory of each job on each of its hosts. See `schedulers.job_hosts`."""

hosts = Table(
    "hosts",
    metadata,
    Column("id", String(384), primary_key=True),
    Column("last_report_at", Float(53), nullable=False),
    Column("is_down", Integer, nullable=False),
)
"""The real hosts and the times of their last reports. Rows are small: all are written once a minute."""

host_facts = Table(
    "host_facts",
    metadata,
    Column("id", String(384), primary_key=True),
    Column("body", Text, nullable=False),  # JSON: name, GPUs and whatever else seldom changes
)

cluster_hubs = Table(
    "cluster_hubs",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("run", String(32), nullable=False),  # another one each time the hub starts
    Column("version", String(64), nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("seen_at", Float(53), nullable=False),  # by the database's clock, as the times of leases
    Column("able_since", Float(53), nullable=True),  # since when it is up to date and may have duties; none: it is not
    Column("lag_seconds", Float(53), nullable=True),
)

cluster_leases = Table(
    "cluster_leases",
    metadata,
    Column("duty", String(64), primary_key=True),
    Column("owner", String(64), nullable=True),  # the hub's name; none: it is free
    Column("run", String(32), nullable=False),
    Column("epoch", BigInteger, nullable=False),  # one more each time it changes hands
    Column("since", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False),
)
"""The owner of each duty in a cluster, and until when."""
REAL: Final = "real"
"""The name of the fleet that is not simulated."""


def name_fleet(demo: int | None) -> str:
    """`demo` is how many hosts are simulated, None if none are."""
    return REAL if demo is None else f"demo-{demo}"
