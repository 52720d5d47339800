/** Jobs of schedulers in words. Pure; `now` is the hub's clock. */
import type { JobGpu, JobReport, JobSummary } from '../api/jobs'
import { bytes, clockTime, count, DASH, duration, moment, percent, plain } from '../ui/format'
import { amount, costText, percentage } from '../usage/usage'

export function jobState({ state, outcome, state_reason: reason }: Pick<JobSummary, 'state' | 'outcome' | 'state_reason'>): string {
  const why = outcome ?? reason
  return why === null ? state : plain(`${state}: ${why}`)
}

/** `physics, gpu, high`: what the scheduler charges it to. */
export function jobPlace({ account, partition, namespace, qos }: JobSummary): string {
  return plain([namespace, account, partition, qos].filter(Boolean).join(', '))
}

/** Hours, and which part of the monitored ones that is. */
function hoursText(hours: number | null, monitored: number): string {
  if (hours === null) return DASH
  return monitored > 0 ? `${amount(hours)} (${percentage(hours / monitored)})` : amount(hours)
}

function monitoredHours({ allocated_hours: allocated, unmonitored_hours: unmonitored }: JobSummary): number {
  return allocated - unmonitored
}

export interface JobRow {
  key: string
  job: string
  name: string
  user: string | null
  place: string
  hosts: string
  gpus: string
  started: string
  lasted: string
  state: string
  isRunning: boolean
  utilization: string
  unused: string
  isWasteful: boolean
}

/** A job that leaves this part of its time unused is marked. */
const MUCH_UNUSED = 0.5

export function jobRow(job: JobSummary, now: number): JobRow {
  const hosts = job.hosts.map(plain)
  return {
    key: `${job.scheduler} ${job.job} ${job.start}`,
    job: plain(job.job),
    name: plain(job.name ?? ''),
    user: job.user,
    place: jobPlace(job),
    hosts: hosts.length > 3 ? `${hosts.slice(0, 2).join(', ')} and ${hosts.length - 2} more` : hosts.join(', '),
    gpus: String(job.gpu_count),
    started: moment(job.start, now),
    lasted: duration(job.wall_seconds),
    state: jobState(job),
    isRunning: job.state === 'running' || job.state === 'suspended',
    utilization: percent(job.utilization_percent),
    unused: hoursText(job.unused_hours, monitoredHours(job)),
    isWasteful: monitoredHours(job) > 0 && (job.unused_hours ?? 0) / monitoredHours(job) >= MUCH_UNUSED,
  }
}

interface Fact {
  label: string
  text: string
  title?: string
}

/** What the scheduler says of it; what it does not say is left out. */
export function jobFacts(job: JobReport, now: number): Fact[] {
  const facts: (Fact | null)[] = [
    { label: 'Scheduler', text: plain(job.scheduler) },
    fact('Namespace', job.namespace),
    fact('Account', job.account),
    fact('Partition', job.partition),
    fact('QOS', job.qos),
    { label: 'Started', text: moment(job.start, now) },
    job.ended_at === null ? null : { label: 'Ended', text: moment(job.ended_at, now) },
    job.ended_at === null && job.until !== null ? { label: 'Time limit', text: clockTime(job.until, now) } : null,
    job.state === 'unknown' ? { label: 'Last seen', text: moment(job.last_seen, now) } : null,
    { label: 'Wall time', text: duration(job.wall_seconds) },
    ...Object.entries(job.labels).map(([label, text]) => ({ label: plain(label), text: plain(text) })),
  ]
  return facts.filter((each) => each !== null)
}

function fact(label: string, text: string | null): Fact | null {
  return text === null ? null : { label, text: plain(text) }
}

/** What became of what it was given. Coverage says how much of it gpudeck saw. */
export function jobFigures(job: JobReport): Fact[] {
  const monitored = monitoredHours(job)
  return [
    { label: 'GPU-hours allocated', text: amount(job.allocated_hours) },
    ...(job.unmonitored_hours > 0 ? [{ label: 'use unknown', text: amount(job.unmonitored_hours) }] : []),
    { label: 'in use', text: hoursText(job.used_hours, monitored) },
    { label: 'unused', text: hoursText(job.unused_hours, monitored) },
    { label: 'idle', text: hoursText(job.idle_hours, monitored) },
    { label: 'active', text: hoursText(job.active_hours, monitored) },
    { label: 'Utilization', text: `${percent(job.utilization_percent)}, peak ${percent(job.utilization_peak_percent)}` },
    { label: 'Memory', text: `${bytes(job.memory_mean_bytes)}, peak ${bytes(job.memory_peak_bytes)}` },
    { label: 'Energy', text: job.energy_kwh === null ? DASH : `${amount(job.energy_kwh)} kWh` },
    { label: 'Cost', text: costText(job.cost, job.currency) },
    { label: 'Coverage', text: job.coverage === null ? DASH : percentage(job.coverage) },
  ]
}

export function gpuPlace({ host, label }: JobGpu): string {
  return plain(`${host}:${label}`)
}

/** `2 stretches, the longest 3h from 02:10`. */
export function idleText(stretches: JobGpu['idle_stretches'], now: number): string {
  if (stretches === null) return DASH
  const [first] = [...stretches].sort(([a, b], [c, d]) => d - c - (b - a))
  if (first === undefined) return 'none'
  return `${count(stretches.length, 'stretch', 'stretches')}, the longest ${duration(first[1] - first[0])} from ${clockTime(first[0], now)}`
}
