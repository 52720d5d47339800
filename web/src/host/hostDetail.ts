/** Everything known about one host, for its details. */
import type { Host } from '../api/types'
import { knownMetrics } from '../gpu/gpuDetail'
import type { HostEntry } from '../stream/fleetModel'
import { clockTime, DASH, duration, elapsed, plain } from '../ui/format'
import { hostText } from './hostText'

export interface HostDetail {
  title: string
  /** The reported name, if a different one is displayed. */
  name: string | undefined
  status: string
  source: string
  inventory: string
  problems: string[]
  facts: { label: string; text: string }[]
  /** The consequence of removing it. */
  removal: string
}

const SOURCES: Record<string, string> = {
  push: 'push: its agent reports to the hub',
  pull: 'pull: the hub polls its agent',
  ssh: 'SSH: the hub logs in',
  scrape: 'scrape: the hub reads a Prometheus exporter',
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
    source: SOURCES[host.via] ?? plain(host.via),
    inventory: host.status === 'never_seen' ? '' : inventory,
    problems: host.problems.map(plain),
    facts: [...hostFacts(host, now), ...knownMetrics(host, 'host', entry.isRead(now)).map(({ label, text }) => ({ label, text }))],
    removal: removalText(host),
  }
}

function hostFacts(host: Host, now: number): HostDetail['facts'] {
  const { clock_skew_seconds: skew, last_report_at: last } = host
  const facts: [string, string | null][] = [
    ['Last report', last === null ? null : `${clockTime(last, now)}, ${duration(elapsed(last, now))} ago`],
    ['Reports every', host.interval_seconds === null ? null : duration(host.interval_seconds)],
    ['Clock', skew === null || Math.abs(skew) < SKEW_SECONDS ? null : `${duration(Math.abs(skew))} ${skew > 0 ? 'ahead of' : 'behind'} the hub`],
    ['System', host.os],
    ['Driver', host.driver_version],
    ['Agent', host.agent_version],
    ['Addresses', host.addresses.join(', ')],
    ['Labels', Object.entries(host.labels).map(([key, value]) => `${key}=${value}`).join(', ')],
  ]
  return facts.flatMap(([label, text]) => (text === null || text === '' || text === DASH ? [] : [{ label, text: plain(text) }]))
}

function removalText({ via }: Host): string {
  return via === 'push' ? 'Its token is revoked. If its agent still runs with the shared agent token, the host comes back.' : 'The hub stops monitoring it.'
}
