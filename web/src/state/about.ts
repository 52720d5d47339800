/** Everything known about one host, for its details. */
import type { Host } from '../api/types'
import { knownMetrics } from './detail'
import type { HostEntry } from './fleet'
import { clockTime, DASH, duration, elapsed, plain } from './format'
import { hostText } from './hosts'

export interface HostDetail {
  title: string
  /** The name it reports under, where another one is shown. */
  name: string | undefined
  status: string
  way: string
  inventory: string
  problems: string[]
  facts: { label: string; text: string }[]
  /** What follows when it is removed. */
  removal: string
}

const WAYS: Record<string, string> = {
  push: 'by push: its own agent reports',
  pull: 'by pull: the hub asks its agent',
  ssh: 'by ssh: the hub logs in',
  scrape: 'by scrape: the hub reads an exporter',
  simulated: 'simulated',
}
/** Seconds between two clocks that are worth a line. */
const SKEW_SECONDS = 1

/** `now` is the hub's clock. */
export function hostDetail(entry: HostEntry, now: number): HostDetail {
  const { host } = entry
  const { name, status, inventory } = hostText(entry, now)
  return {
    title: name,
    name: host.name === host.display_name ? undefined : plain(host.name),
    status,
    way: WAYS[host.via] ?? `by ${plain(host.via)}`,
    inventory: host.status === 'never' ? '' : inventory,
    problems: host.problems.map(plain),
    facts: [...spokenFacts(host, now), ...knownMetrics(host, 'host', entry.isRead(now)).map(({ label, text }) => ({ label, text }))],
    removal: removalText(host),
  }
}

function spokenFacts(host: Host, now: number): HostDetail['facts'] {
  const { clock_skew_seconds: skew, last_report_at: last } = host
  const facts: [string, string | null][] = [
    ['Last report', last === null ? null : `${clockTime(last, now)}, ${duration(elapsed(last, now))} ago`],
    ['Reports every', host.interval_seconds === null ? null : duration(host.interval_seconds)],
    ['Its clock', skew === null || Math.abs(skew) < SKEW_SECONDS ? null : `${duration(Math.abs(skew))} ${skew > 0 ? 'ahead' : 'behind'}`],
    ['System', host.os],
    ['Driver', host.driver_version],
    ['Agent', host.agent_version],
    ['Addresses', host.addresses.join(', ')],
    ['Labels', Object.entries(host.labels).map(([key, value]) => `${key}=${value}`).join(', ')],
  ]
  return facts.flatMap(([label, text]) => (text === null || text === '' || text === DASH ? [] : [{ label, text: plain(text) }]))
}

function removalText({ via }: Host): string {
  return via === 'push' ? 'Its own token no longer counts. It comes back if its agent still runs with the token of all agents.' : 'The hub stops reading it.'
}
