BEGIN TRANSACTION;
CREATE TABLE accounts (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	password_hash TEXT, 
	is_disabled INTEGER DEFAULT '0' NOT NULL, 
	created_at FLOAT NOT NULL, 
	last_login_at FLOAT, 
	CONSTRAINT ck_accounts_role CHECK (role IN ('viewer', 'user', 'admin')), 
	CONSTRAINT uq_accounts_name UNIQUE (name)
);
CREATE TABLE alert_mutes (
	fleet VARCHAR(16) NOT NULL, 
	id VARCHAR(16) NOT NULL, 
	"end" FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_alert_mutes PRIMARY KEY (fleet, id)
);
CREATE TABLE alerts (
	fleet VARCHAR(16) NOT NULL, 
	id VARCHAR(16) NOT NULL, 
	rule VARCHAR(64) NOT NULL, 
	severity VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	host VARCHAR(256), 
	host_id VARCHAR(384) NOT NULL, 
	is_open INTEGER NOT NULL, 
	fired_at FLOAT NOT NULL, 
	resolved_at FLOAT, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_alerts PRIMARY KEY (fleet, id)
);
CREATE TABLE audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at FLOAT NOT NULL, 
	who VARCHAR(160) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	subject VARCHAR(256) DEFAULT '' NOT NULL, 
	outcome VARCHAR(16) DEFAULT 'done' NOT NULL, 
	address VARCHAR(64) DEFAULT '' NOT NULL, 
	details TEXT DEFAULT '' NOT NULL
);
CREATE TABLE cluster_hubs (
	name VARCHAR(64) NOT NULL, 
	run VARCHAR(32) NOT NULL, 
	version VARCHAR(64) NOT NULL, 
	started_at FLOAT NOT NULL, 
	seen_at FLOAT NOT NULL, 
	able_since FLOAT, 
	lag_seconds FLOAT, 
	CONSTRAINT pk_cluster_hubs PRIMARY KEY (name)
);
CREATE TABLE cluster_leases (
	duty VARCHAR(64) NOT NULL, 
	owner VARCHAR(64), 
	run VARCHAR(32) NOT NULL, 
	epoch BIGINT NOT NULL, 
	since FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	CONSTRAINT pk_cluster_leases PRIMARY KEY (duty)
);
CREATE TABLE device_logins (
	hash VARCHAR(64) NOT NULL, 
	user_code VARCHAR(16) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	address VARCHAR(64) DEFAULT '' NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	token_seconds FLOAT NOT NULL, 
	port INTEGER, 
	code_hash VARCHAR(64), 
	account_id INTEGER, 
	is_denied INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_device_logins PRIMARY KEY (hash), 
	CONSTRAINT uq_device_logins_user_code UNIQUE (user_code), 
	CONSTRAINT fk_device_logins_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE digests (
	fleet VARCHAR(16) NOT NULL, 
	period VARCHAR(16) NOT NULL, 
	recipient VARCHAR(64) NOT NULL, 
	outcome VARCHAR(16) NOT NULL, 
	done_at FLOAT NOT NULL, 
	CONSTRAINT pk_digests PRIMARY KEY (fleet, period, recipient)
);
CREATE TABLE events (
	fleet VARCHAR(16) NOT NULL, 
	id VARCHAR(21) NOT NULL, 
	at FLOAT NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	severity VARCHAR(16) NOT NULL, 
	host VARCHAR(256), 
	host_id VARCHAR(384), 
	gpu VARCHAR(256), 
	label VARCHAR(32), 
	user VARCHAR(256), 
	title TEXT NOT NULL, 
	detail TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (fleet, id)
);
CREATE TABLE gpudeck_version (
	version_num VARCHAR(32) NOT NULL, 
	PRIMARY KEY (version_num)
);
INSERT INTO "gpudeck_version" VALUES('0026');
CREATE TABLE host_facts (
	id VARCHAR(384) NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_host_facts PRIMARY KEY (id)
);
CREATE TABLE host_notes (
	fleet VARCHAR(16) NOT NULL, 
	host_id VARCHAR(384) NOT NULL, 
	host VARCHAR(256) NOT NULL, 
	note VARCHAR(1000) NOT NULL, 
	written_at FLOAT NOT NULL, 
	written_by VARCHAR(160) NOT NULL, 
	CONSTRAINT pk_host_notes PRIMARY KEY (fleet, host_id)
);
CREATE TABLE hosts (
	id VARCHAR(384) NOT NULL, 
	last_report_at FLOAT NOT NULL, 
	is_down INTEGER NOT NULL, 
	CONSTRAINT pk_hosts PRIMARY KEY (id)
);
CREATE TABLE identities (
	provider VARCHAR(255) NOT NULL, 
	subject VARCHAR(255) NOT NULL, 
	account_id INTEGER NOT NULL, 
	user_group VARCHAR(64), 
	mail VARCHAR(256), 
	created_at FLOAT NOT NULL, 
	checked_at FLOAT NOT NULL, 
	CONSTRAINT pk_identities PRIMARY KEY (provider, subject), 
	CONSTRAINT fk_identities_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE idle_keeps (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(16) NOT NULL, 
	gpu VARCHAR(256) NOT NULL, 
	host VARCHAR(256) NOT NULL, 
	label VARCHAR(32) NOT NULL, 
	user VARCHAR(160) NOT NULL, 
	start FLOAT NOT NULL, 
	"end" FLOAT NOT NULL, 
	reason VARCHAR(500) NOT NULL
);
CREATE TABLE idle_ladders (
	fleet VARCHAR(16) NOT NULL, 
	gpu VARCHAR(256) NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_idle_ladders PRIMARY KEY (fleet, gpu)
);
CREATE TABLE job_gpus (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	uuid VARCHAR(256) NOT NULL, 
	host VARCHAR(256) NOT NULL, 
	host_id VARCHAR(384) NOT NULL, 
	label VARCHAR(32) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	memory_bytes BIGINT, 
	is_used INTEGER DEFAULT '0' NOT NULL, 
	is_shared INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_job_gpus PRIMARY KEY (id), 
	CONSTRAINT fk_job_gpus_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE job_hosts (
	job_id INTEGER NOT NULL, 
	host VARCHAR(256) NOT NULL, 
	read_at FLOAT NOT NULL, 
	cpu_seconds FLOAT, 
	cpu_peak_cores FLOAT, 
	cpu_limit_cores FLOAT, 
	memory_peak_bytes FLOAT, 
	memory_limit_bytes FLOAT, 
	memory_sum FLOAT NOT NULL, 
	memory_readings FLOAT NOT NULL, 
	reason VARCHAR(2048), 
	CONSTRAINT pk_job_hosts PRIMARY KEY (job_id, host), 
	CONSTRAINT fk_job_hosts_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE job_usage (
	span INTEGER NOT NULL, 
	start BIGINT NOT NULL, 
	job_gpu_id INTEGER NOT NULL, 
	allocated FLOAT NOT NULL, 
	unobserved FLOAT NOT NULL, 
	used FLOAT NOT NULL, 
	active FLOAT NOT NULL, 
	measured FLOAT NOT NULL, 
	idle FLOAT NOT NULL, 
	joules FLOAT NOT NULL, 
	metered FLOAT NOT NULL, 
	memory_sum FLOAT NOT NULL, 
	memory_seconds FLOAT NOT NULL, 
	memory_peak FLOAT NOT NULL, 
	utilization_peak FLOAT NOT NULL, 
	CONSTRAINT pk_job_usage PRIMARY KEY (span, start, job_gpu_id), 
	CONSTRAINT fk_job_usage_job_gpu_id_job_gpus FOREIGN KEY(job_gpu_id) REFERENCES job_gpus (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE jobs (
	id INTEGER NOT NULL, 
	fleet VARCHAR(16) NOT NULL, 
	scheduler VARCHAR(256) NOT NULL, 
	job VARCHAR(512) NOT NULL, 
	start FLOAT NOT NULL, 
	name VARCHAR(256), 
	user VARCHAR(256), 
	account VARCHAR(256), 
	partition VARCHAR(256), 
	qos VARCHAR(256), 
	namespace VARCHAR(256), 
	labels TEXT, 
	since FLOAT, 
	until FLOAT, 
	is_suspended INTEGER DEFAULT '0' NOT NULL, 
	first_seen FLOAT NOT NULL, 
	last_seen FLOAT NOT NULL, 
	ended_at FLOAT, 
	outcome VARCHAR(64), 
	number VARCHAR(32), 
	CONSTRAINT pk_jobs PRIMARY KEY (id)
);
CREATE TABLE login_trials (
	id VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_login_trials PRIMARY KEY (id)
);
CREATE TABLE maintenance (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(16) NOT NULL, 
	host VARCHAR(256) NOT NULL, 
	host_id VARCHAR(384) NOT NULL, 
	gpu VARCHAR(256), 
	label VARCHAR(32), 
	start FLOAT NOT NULL, 
	"end" FLOAT, 
	reason VARCHAR(500) NOT NULL, 
	created_at FLOAT NOT NULL, 
	created_by VARCHAR(160) NOT NULL
);
CREATE TABLE outbox (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(16) NOT NULL, 
	"key" VARCHAR(256) NOT NULL, 
	destination VARCHAR(128) NOT NULL, 
	channel VARCHAR(32) NOT NULL, 
	account VARCHAR(64), 
	message TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	created_at FLOAT NOT NULL, 
	due_at FLOAT NOT NULL, 
	claimed_until FLOAT, 
	done_at FLOAT, 
	tries INTEGER NOT NULL, 
	trouble VARCHAR(256) DEFAULT '' NOT NULL, 
	CONSTRAINT ck_outbox_state CHECK (state IN ('waiting', 'sent', 'failed')), 
	CONSTRAINT uq_outbox_fleet_key_destination UNIQUE (fleet, "key", destination)
);
CREATE TABLE personal_mutes (
	account VARCHAR(64) NOT NULL, 
	rule VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_personal_mutes PRIMARY KEY (account, rule)
);
CREATE TABLE own_keys (
	name VARCHAR(64) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_own_keys PRIMARY KEY (name)
);
CREATE TABLE provider_blocks (
	account_id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	reason VARCHAR(256) NOT NULL, 
	CONSTRAINT pk_provider_blocks PRIMARY KEY (account_id), 
	CONSTRAINT fk_provider_blocks_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE provider_grants (
	hash VARCHAR(64) NOT NULL, 
	account_id INTEGER NOT NULL, 
	provider VARCHAR(255) NOT NULL, 
	subject VARCHAR(255) NOT NULL, 
	sid VARCHAR(255), 
	sealed TEXT DEFAULT '' NOT NULL, 
	due_at FLOAT NOT NULL, 
	CONSTRAINT pk_provider_grants PRIMARY KEY (hash), 
	CONSTRAINT fk_provider_grants_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE queue_requests (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(16) NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	user VARCHAR(160) NOT NULL, 
	account VARCHAR(64), 
	gpus INTEGER NOT NULL, 
	memory_bytes BIGINT, 
	model VARCHAR(256), 
	host VARCHAR(256), 
	near VARCHAR(256), 
	same_host INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	last_seen_at FLOAT NOT NULL, 
	granted TEXT, 
	mig INTEGER DEFAULT '0' NOT NULL, 
	allow_mig INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT uq_queue_requests_fleet_key UNIQUE (fleet, "key")
);
CREATE TABLE reservation_gpus (
	reservation_id INTEGER NOT NULL, 
	uuid VARCHAR(256) NOT NULL, 
	host VARCHAR(256) NOT NULL, 
	label VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_reservation_gpus PRIMARY KEY (reservation_id, uuid), 
	CONSTRAINT fk_reservation_gpus_reservation_id_reservations FOREIGN KEY(reservation_id) REFERENCES reservations (id) ON DELETE CASCADE
);
CREATE TABLE reservations (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(16) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	user VARCHAR(160) NOT NULL, 
	start FLOAT NOT NULL, 
	"end" FLOAT NOT NULL, 
	note VARCHAR(1000) DEFAULT '' NOT NULL, 
	version INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	created_by VARCHAR(160) NOT NULL, 
	changed_at FLOAT NOT NULL, 
	used_at FLOAT, 
	released_at FLOAT, 
	release_reason VARCHAR(256), 
	CONSTRAINT ck_reservations_kind CHECK (kind IN ('reservation', 'claim'))
);
CREATE TABLE saved_views (
	account_id INTEGER NOT NULL, 
	views TEXT NOT NULL, 
	CONSTRAINT pk_saved_views PRIMARY KEY (account_id), 
	CONSTRAINT fk_saved_views_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE sessions (
	hash VARCHAR(64) NOT NULL, 
	account_id INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	seen_at FLOAT NOT NULL, 
	address VARCHAR(64) DEFAULT '' NOT NULL, 
	user_agent VARCHAR(256) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (hash), 
	CONSTRAINT fk_sessions_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE tokens (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	hash VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	hosts VARCHAR(256), 
	account_id INTEGER, 
	created_at FLOAT NOT NULL, 
	created_by VARCHAR(128) DEFAULT '' NOT NULL, 
	expires_at FLOAT, 
	last_used_at FLOAT, 
	revoked_at FLOAT, 
	CONSTRAINT ck_tokens_role CHECK (role IN ('agent', 'viewer', 'user', 'admin', 'calendar')), 
	CONSTRAINT uq_tokens_hash UNIQUE (hash), 
	CONSTRAINT fk_tokens_account_id_accounts FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE vesta_hosts (
	id VARCHAR(64) NOT NULL, 
	name VARCHAR(160) NOT NULL, 
	address VARCHAR(64) DEFAULT '' NOT NULL, 
	created_at FLOAT NOT NULL, 
	seen_at FLOAT NOT NULL, 
	CONSTRAINT pk_vesta_hosts PRIMARY KEY (id), 
	CONSTRAINT uq_vesta_hosts_name UNIQUE (name)
);
CREATE TABLE vesta_samples (
	id VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	body BLOB NOT NULL, 
	CONSTRAINT pk_vesta_samples PRIMARY KEY (id, at)
);
CREATE TABLE vesta_spans (
	id VARCHAR(64) NOT NULL, 
	start FLOAT NOT NULL, 
	"end" FLOAT NOT NULL, 
	CONSTRAINT pk_vesta_spans PRIMARY KEY (id, start)
);
CREATE TABLE watches (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(16) NOT NULL, 
	user VARCHAR(160) NOT NULL, 
	account VARCHAR(64), 
	gpus INTEGER NOT NULL, 
	memory_bytes BIGINT, 
	model VARCHAR(256), 
	host VARCHAR(256), 
	same_host INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	fired_at FLOAT, 
	found TEXT, 
	mig INTEGER DEFAULT '0' NOT NULL, 
	allow_mig INTEGER DEFAULT '0' NOT NULL
);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_events_fleet_kind_id ON events (fleet, kind, id);
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_events_fleet_host_id_id ON events (fleet, host_id, id);
CREATE INDEX ix_events_fleet_host_id ON events (fleet, host, id);
CREATE INDEX ix_events_fleet_gpu_id ON events (fleet, gpu, id);
CREATE INDEX ix_reservations_fleet_end ON reservations (fleet, "end");
CREATE INDEX ix_maintenance_fleet_end ON maintenance (fleet, "end");
CREATE INDEX ix_idle_keeps_fleet_end ON idle_keeps (fleet, "end");
CREATE INDEX ix_outbox_channel_state_due_at ON outbox (channel, state, due_at);
CREATE INDEX ix_watches_fleet_expires_at ON watches (fleet, expires_at);
CREATE INDEX ix_alerts_fleet_is_open ON alerts (fleet, is_open);
CREATE INDEX ix_alerts_resolved_at ON alerts (resolved_at);
CREATE INDEX ix_jobs_fleet_number ON jobs (fleet, number);
CREATE INDEX ix_jobs_last_seen ON jobs (last_seen);
CREATE INDEX ix_jobs_fleet_job ON jobs (fleet, job);
CREATE INDEX ix_jobs_fleet_start ON jobs (fleet, start);
CREATE INDEX ix_sessions_account_id ON sessions (account_id);
CREATE INDEX ix_identities_account_id ON identities (account_id);
CREATE INDEX ix_provider_grants_due_at ON provider_grants (due_at);
CREATE INDEX ix_provider_grants_account_id ON provider_grants (account_id);
CREATE INDEX ix_reservation_gpus_uuid ON reservation_gpus (uuid);
CREATE INDEX ix_job_gpus_job_id ON job_gpus (job_id);
CREATE INDEX ix_job_usage_job_gpu_id ON job_usage (job_gpu_id);
DELETE FROM "sqlite_sequence";
COMMIT;
