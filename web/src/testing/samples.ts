/** Hosts and GPUs for the unit tests: ordinary ones, with what a test is about put on top. */
import type { Alert } from '../api/alerts'
import type { Availability, Fleet, Gpu, Host, HostRows, Process, Snapshot, Totals } from '../api/types'
import catalog from '../api/catalog.json'
import { Arranger } from '../fleet/arrange'
import { HostEntry } from '../stream/fleetModel'
import { UserIndex, type ActiveUser } from '../users/users'

export const NOW = 1_800_000_000
export const GIB = 2 ** 30

/** A process of which nothing is known. */
export const someProcess: Readonly<Process> = Object.freeze({
  pid: 1,
  user: null,
  command: null,
  memory_used_bytes: null,
  started_at: null,
  utilization_percent: null,
  container: null,
  job: null,
  evidence: null,
  display: false,
  reasons: {},
})

/** Every metric of a scope as unknown: a new one in the catalog needs no line here. */
function nothingKnown(scope: string): Record<string, null> {
  return Object.fromEntries(catalog.filter((metric) => metric.scope === scope).map((metric) => [metric.name, null]))
}

export function gpu(changes: Partial<Gpu> = {}): Gpu {
  return {
    ...nothingKnown('gpu'),
    uuid: 'GPU-1',
    index: 0,
    label: '0',
    name: 'NVIDIA A100-SXM4-80GB',
    display_name: 'A100-SXM4-80GB',
    vendor: 'nvidia',
    parent: null,
    pci_address: null,
    availability: 'free',
    availability_reason: null,
    last_seen: null,
    since: NOW - 3 * 3600,
    health: 'ok',
    health_reason: null,
    health_action: null,
    users: [],
    maintenance: null,
    allocation: null,
    processes: [],
    events: [],
    reservation: null,
    reasons: {},
    utilization_percent: 0,
    memory_utilization_percent: 0,
    memory_used_bytes: 0,
    memory_total_bytes: 80 * GIB,
    temperature_celsius: 31,
    power_watts: 60,
    power_limit_watts: 400,
    fan_percent: null,
    clock_sm_mhz: 210,
    clock_memory_mhz: 1512,
    ...changes,
  } as Gpu
}

export function busyGpu(user: string, changes: Partial<Gpu> = {}): Gpu {
  return gpu({ availability: 'busy', users: [user], utilization_percent: 97, memory_used_bytes: 71 * GIB, ...changes })
}

export function host(name: string, gpus: Gpu[], changes: Partial<Host> = {}): Host {
  return {
    ...nothingKnown('host'),
    id: name,
    name,
    display_name: name,
    status: 'up',
    via: 'push',
    last_report_at: NOW,
    interval_seconds: 2,
    clock_skew_seconds: 0,
    agent_version: '0.1.0',
    driver_version: '580.65',
    os: 'Debian 13',
    labels: {},
    disks: [],
    addresses: [],
    problems: [],
    maintenance: null,
    note: null,
    reasons: {},
    cpu_percent: 22,
    cpu_count: 64,
    load_1m: 1.5,
    memory_used_bytes: 310 * GIB,
    memory_total_bytes: 2015 * GIB,
    disk_used_bytes: 61 * GIB,
    disk_total_bytes: 100 * GIB,
    uptime_seconds: 12 * 86400,
    gpus: gpus.map((each, index) => ({ ...each, uuid: `${name}-${index}`, index, label: String(index) })),
    ...changes,
  } as Host
}

/** A host with one GPU a state. */
export function entry(name: string, states: Availability[] = ['free'], changes: Partial<Host> = {}): HostEntry {
  const gpus = states.map((availability) => gpu({ availability }))
  return new HostEntry(host(name, gpus, changes), NOW)
}

/** The board of these hosts. */
export function arrange(...asked: Parameters<Arranger['arrange']>): ReturnType<Arranger['arrange']> {
  return new Arranger().arrange(...asked)
}

/** Who uses the GPUs of these hosts. */
export function activeUsers(hosts: readonly Host[]): ActiveUser[] {
  return new UserIndex(({ base }) => base).update(hosts.map((each) => new HostEntry(each)))
}

export function totals(changes: Partial<Totals> = {}): Totals {
  return { gpus: 0, free: 0, busy: 0, idle: 0, allocated: 0, reserved: 0, drained: 0, unknown: 0, hosts: 0, hosts_up: 0, users: 0, power_watts: null, ...changes }
}

export function fleet(hosts: Host[], changes: Partial<Fleet> = {}): Fleet {
  return { demo: false, time: NOW, version: '0.1.0', totals: totals({ hosts: hosts.length }), problems: [], alerts: [], alert_counts: { total: 0, needs_attention: 0, critical: 0 }, hosts, ...changes }
}

/** The same as the stream's first event: each host and GPU has the row of its place. */
export function snapshot(hosts: Host[], changes: Partial<Snapshot> = {}): Snapshot {
  let first = 0
  const rows = hosts.map(({ id, gpus }, row): HostRows => [id, row, (first += gpus.length) - gpus.length])
  return { ...fleet(hosts), rows, ...changes }
}

/** A host that went down. */
export function someAlert(changes: Partial<Alert> = {}): Alert {
  return {
    id: '3eca30b04c',
    rule: 'host_down',
    severity: 'critical',
    state: 'firing',
    title: 'gpu01 has stopped reporting',
    action: 'Look at it.',
    note: null,
    host: 'gpu01',
    host_id: 'id-1',
    gpu: null,
    label: null,
    accounts: [],
    since: NOW - 60,
    fired_at: NOW - 60,
    acknowledged_at: null,
    acknowledged_by: null,
    resolved_at: null,
    muted_by: null,
    ...changes,
  }
}
