import { describe, expect, it } from 'vitest'
import type { About } from '../api/events'
import { diagnostics, factsOf } from './diagnostics'

const NOW = 1_800_000_000
const about: About = {
  version: '0.1.0',
  python: '3.11.7',
  system: 'Linux x86_64',
  demo: false,
  time: NOW,
  started_at: NOW - 7200,
  tick_age_seconds: 0.2,
  viewers: 3,
  totals: { gpus: 8, free: 8, busy: 0, idle: 0, allocated: 0, reserved: 0, drained: 0, unknown: 0, hosts: 2, hosts_up: 1, users: 0, power_watts: null },
  sources: [{ via: 'push', hosts: 2, up: 1, late: 0, down: 1, never_seen: 0 }],
  ingest: { reports_per_second: null, reports_taken: 12_345, reports_outdated: 0, reports_other_source: 0, values_rejected: 0, poll_failures: 0, refused: { fleet_full: 2 } },
  database: { kind: 'sqlite', events: null, reason: 'the database does not answer', problem: null },
  history: { kind: 'embedded', size_bytes: 12_300_000, oldest: NOW - 86_400, newest: NOW, samples_taken: 5, samples_dropped: 0, samples_late: 0, behind_seconds: 0, problem: null, reason: null },
  limits_hit: { logins: 4 },
  problems: ['events are not kept\u202e'],
  cluster: null,
  place: { listen: '127.0.0.1:8042', data_dir: '/home/secret', config: null, database: '/home/secret/gpudeck.db' },
}

const texts = (some: About) => factsOf(some, NOW).flatMap(({ facts }) => facts.map(({ label, text }) => `${label}: ${text}`))

describe('the hub about itself', () => {
  it('tells an unknown value as a dash and never as a zero', () => {
    expect(texts(about)).toContain('Events stored: –')
    expect(texts(about)).toContain('Rate: –')
  })
  it('marks what somebody should look at', () => {
    const odd = factsOf(about, NOW).flatMap(({ facts }) => facts.filter(({ isOdd }) => isOdd).map(({ text }) => text))
    expect(odd).toEqual(['events are not kept\ufffd', '1 of 2 up, 1 down', 'fleet_full 2', '4 times'])
  })
  it('says of a hub without history why there are no figures', () => {
    expect(texts({ ...about, history: { ...about.history, kind: 'off', reason: 'this hub keeps no history' } })).toContain('Storage: this hub keeps no history')
  })
  it('says of several hubs which has which duty, and which is missing', () => {
    const hub = { version: '0.1.0', started_at: NOW - 60, seen_seconds_ago: 1, is_alive: true, lag_seconds: 0.004, is_this: true }
    const cluster: NonNullable<About['cluster']> = {
      state: 'ok',
      problems: [],
      hubs: [
        { ...hub, name: 'a' },
        { ...hub, name: 'b', is_alive: false, seen_seconds_ago: 3600, lag_seconds: null, is_this: false },
      ],
      duties: [
        { name: 'alerts', owner: 'a', epoch: 3, since: NOW - 60 },
        { name: 'events', owner: null, epoch: 2, since: null },
        { name: 'polling-00', owner: 'a', epoch: 1, since: NOW },
      ],
      reports_forwarded: 1,
      reports_received: 1,
      reports_dropped: 0,
      duplicates: 0,
    }
    expect(texts({ ...about, cluster })).toEqual(
      expect.arrayContaining(['This hub: up to date', 'a: gpudeck 0.1.0, lag 4 ms, 1 of 1 polling shards', 'b: not seen for 1h', 'Duty: alerts: a, for 1m', 'Duty: events: no hub']),
    )
    expect(texts(about).filter((text) => text.startsWith('This hub'))).toEqual([])
  })
  it('shows where things are to admins alone', () => {
    expect(texts(about)).toContain('Configuration: none')
    expect(texts({ ...about, place: null }).join()).not.toContain('secret')
  })
})

describe('the text for a bug report', () => {
  it('has the figures and the browser, and no place of the hub', () => {
    const text = diagnostics(about, NOW, 'Firefox')
    expect(text).toContain('  Version: gpudeck 0.1.0\n')
    expect(text).toContain('Browser: Firefox\n')
    expect(text).not.toContain('secret')
    expect(text).not.toContain('127.0.0.1')
  })
})
