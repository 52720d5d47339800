/** The hub about itself, as rows to read and as text for a bug report. Neither holds a secret, and the text no place. */
import type { About } from '../api/events'
import { count, DASH, duration, moment, plain, utcTime } from '../ui/format'

export interface Fact {
  label: string
  text: string
  title?: string
  /** Needs attention. */
  isOdd?: boolean
}

export interface FactGroup {
  title: string
  facts: Fact[]
}

const SOURCES: Record<string, string> = { push: 'Push', pull: 'Pull', ssh: 'SSH', scrape: 'Scrape', simulated: 'Simulated' }

/** `now` is the hub's clock. */
export function factsOf(about: About, now: number): FactGroup[] {
  return [
    { title: 'Hub', facts: hubFacts(about, now) },
    { title: 'Sources', facts: sourceFacts(about) },
    { title: 'Reports', facts: reportFacts(about) },
    { title: 'History', facts: historyFacts(about, now) },
    { title: 'Database', facts: databaseFacts(about) },
    ...(about.cluster ? [{ title: 'Cluster', facts: clusterFacts(about.cluster, now) }] : []),
    { title: 'Limits reached', facts: limitFacts(about) },
    ...(about.place === null ? [] : [{ title: 'Paths', facts: placeFacts(about.place) }]),
  ]
}

function hubFacts(about: About, now: number): Fact[] {
  return [
    { label: 'Version', text: `gpudeck ${about.version}` },
    { label: 'Uptime', text: duration(Math.max(0, now - about.started_at)), title: `since ${utcTime(about.started_at)}` },
    { label: 'Fleet', text: `${count(about.totals.hosts, 'host')}, ${count(about.totals.gpus, 'GPU')}${about.demo ? ', all simulated' : ''}` },
    about.viewers > 0 ? { label: 'Viewers', text: String(about.viewers) } : { label: 'Viewers', text: DASH, title: 'This page is not connected yet. It is counted once it is.' },
    { label: 'Platform', text: `${about.system}, Python ${about.python}` },
    ...about.problems.map((problem) => ({ label: 'Problem', text: plain(problem), isOdd: true })),
  ]
}

function sourceFacts(about: About): Fact[] {
  if (about.sources.length === 0) return [{ label: 'Hosts', text: 'none yet' }]
  return about.sources.map((source) => {
    const missed = (['late', 'down', 'never_seen'] as const).filter((status) => source[status] > 0).map((status) => `${source[status]} ${status === 'never_seen' ? 'never seen' : status}`)
    return { label: SOURCES[source.via] ?? plain(source.via), text: [`${figure(source.up)} of ${figure(source.hosts)} up`, ...missed].join(', '), isOdd: source.down + source.never_seen > 0 }
  })
}

function reportFacts({ ingest }: About): Fact[] {
  const refused = Object.entries(ingest.refused)
  return [
    { label: 'Rate', text: ingest.reports_per_second === null ? DASH : `${ingest.reports_per_second.toFixed(1)} per second`, title: 'over the last minute' },
    { label: 'Accepted', text: figure(ingest.reports_taken) },
    { label: 'Duplicate or outdated', text: figure(ingest.reports_outdated) },
    { label: 'From another source', text: figure(ingest.reports_other_source) },
    { label: 'Invalid values', text: figure(ingest.values_rejected), isOdd: ingest.values_rejected > 0 },
    { label: 'Failed polls', text: figure(ingest.poll_failures), title: 'since the hub started' },
    { label: 'Rejected', text: refused.length === 0 ? '0' : refused.map(([code, times]) => `${code} ${figure(times)}`).join(', '), isOdd: refused.length > 0 },
  ]
}

function historyFacts({ history }: About, now: number): Fact[] {
  if (history.reason !== null) return [{ label: 'Storage', text: plain(history.reason ?? '') }]
  const isBehind = (history.behind_seconds ?? 0) > 60
  return [
    { label: 'Storage', text: history.kind === 'embedded' ? 'embedded' : 'Prometheus-compatible' },
    { label: 'Size', text: size(history.size_bytes) },
    { label: 'Oldest sample', text: moment(history.oldest ?? null, now), title: utcTime(history.oldest ?? null) },
    { label: 'Newest sample', text: moment(history.newest ?? null, now), title: utcTime(history.newest ?? null) },
    { label: 'Samples since start', text: figure(history.samples_taken) },
    { label: 'Dropped', text: figure(history.samples_dropped), isOdd: (history.samples_dropped ?? 0) > 0 },
    { label: 'Late samples', text: figure(history.samples_late) },
    ...(isBehind ? [{ label: 'Lag', text: duration(history.behind_seconds ?? 0), isOdd: true }] : []),
    ...(history.problem ? [{ label: 'Problem', text: plain(history.problem), isOdd: true }] : []),
  ]
}

function databaseFacts({ database }: About): Fact[] {
  return [
    { label: 'Kind', text: database.kind === 'sqlite' ? 'SQLite' : 'PostgreSQL' },
    { label: 'Events stored', text: figure(database.events), ...(database.reason ? { title: plain(database.reason) } : {}) },
    ...(database.problem ? [{ label: 'Problem', text: plain(database.problem), isOdd: true }] : []),
  ]
}

/** Polling is shared out in sixteen parts: how many each hub has says enough. */
function clusterFacts({ state, hubs, duties }: NonNullable<About['cluster']>, now: number): Fact[] {
  const words = { ok: 'up to date', catching_up: 'catching up', alone: 'cut off from the other hubs' }
  const [shards, others] = [duties.filter(({ name }) => name.startsWith('polling-')), duties.filter(({ name }) => !name.startsWith('polling-'))]
  return [
    { label: 'This hub', text: words[state], isOdd: state !== 'ok' },
    ...hubs.map((hub) => {
      const polls = shards.filter(({ owner }) => owner === hub.name).length
      const lag = hub.lag_seconds === null || hub.lag_seconds === undefined ? 'no connection to the bus' : `lag ${Math.round(hub.lag_seconds * 1000)} ms`
      const parts = hub.is_alive ? [`gpudeck ${hub.version}`, lag, `${polls} of ${shards.length} polling shards`] : [`not seen for ${duration(hub.seen_seconds_ago)}`]
      return { label: plain(hub.name), text: parts.join(', '), isOdd: !hub.is_alive || hub.lag_seconds === null }
    }),
    ...others.map(({ name, owner, epoch, since }) =>
      owner ? { label: `Duty: ${name}`, text: `${plain(owner)}, for ${duration(Math.max(0, now - (since ?? now)))}`, title: `epoch ${epoch}` } : { label: `Duty: ${name}`, text: 'no hub', isOdd: true },
    ),
  ]
}

function limitFacts(about: About): Fact[] {
  const hits = Object.entries(about.limits_hit)
  if (hits.length === 0) return [{ label: 'None', text: 'no limit was reached' }]
  return hits.map(([limit, times]) => ({ label: limit.replaceAll('_', ' '), text: `${figure(times)} times`, isOdd: true }))
}

function placeFacts(place: NonNullable<About['place']>): Fact[] {
  const text = (value: string | null | undefined): string => (value ? plain(value) : 'none')
  return [
    { label: 'Listening on', text: text(place.listen) },
    { label: 'Data folder', text: text(place.data_dir) },
    { label: 'Configuration', text: text(place.config) },
    { label: 'Database', text: text(place.database) },
  ]
}

/** For a bug report: everything but where things are, and the browser. */
export function diagnostics(about: About, now: number, browser: string): string {
  const groups = factsOf({ ...about, place: null }, now)
  const lines = groups.flatMap(({ title, facts }) => ['', title, ...facts.map(({ label, text }) => `  ${label}: ${text}`)])
  return [`gpudeck diagnostics, ${utcTime(now)}`, ...lines, '', `Browser: ${plain(browser)}`, ''].join('\n')
}

function figure(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : value.toLocaleString('en')
}

function size(value: number | null | undefined): string {
  if (value === null || value === undefined) return DASH
  const [unit, name] = value >= 1e9 ? [1e9, 'GB'] : [1e6, 'MB']
  return `${(value / unit).toFixed(1)} ${name}`
}
