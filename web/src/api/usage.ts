/** Who used how much. */
import { ask, type Answer } from './ask'
import type { HeatMap, Past } from './history'
import type { Usage, UsageBy } from './types'

/** `series` are curves of the fleet, one a metric. `until` is when the figures end, Unix seconds. */
export interface Overview {
  until: number
  series: Past[]
  usage: Usage
  heat: HeatMap | null
}

/** A year of a large fleet takes the hub longer than a look at the live one. */
const PATIENCE_MS = 60_000

export interface UsageQuestion {
  by: UsageBy
  start: number
  end: number
  /** Where days begin: an IANA name. */
  zone: string
  isDaily: boolean
  user?: string
}

/** Where the days begin that an answer has. */
export type Zoned<T> = T & { zone: string }

export function readUsage(question: UsageQuestion, signal?: AbortSignal): Promise<Answer<Zoned<Usage>>> {
  return inZone(question.zone, (zone) => ask(`api/v1/usage?${asked({ ...question, zone })}`, 'GET', undefined, PATIENCE_MS, signal))
}

export interface OverviewQuestion {
  by: UsageBy
  start: number
  end: number
  zone: string
  /** About so many of each curve. */
  points: number
  /** Whether the map of the hosts is wanted. */
  heat: boolean
}

/** Everything that the History page shows of a period. */
export function readOverview({ by, start, end, zone, points, heat }: OverviewQuestion, signal?: AbortSignal): Promise<Answer<Zoned<Overview>>> {
  const query = (zone: string): string => new URLSearchParams({ by, start: String(start), end: String(end), zone, points: String(points), heat: String(heat) }).toString()
  return inZone(zone, (zone) => ask(`api/v1/history/overview?${query(zone)}`, 'GET', undefined, PATIENCE_MS, signal))
}

/** A hub that does not know the zone is asked for days in UTC: `zone` says which it became. */
async function inZone<T extends object>(zone: string, question: (zone: string) => Promise<Answer<T>>): Promise<Answer<Zoned<T>>> {
  const answer = await question(zone)
  if ('done' in answer) return { done: { ...answer.done, zone } }
  const isZone = answer.refused.status === 400 && answer.refused.message.includes('time zone') && zone !== 'UTC'
  return isZone ? inZone('UTC', question) : answer
}

/** Where the same is as a file for spreadsheets. */
export function usageSheet(question: UsageQuestion): string {
  return `api/v1/usage?${asked(question)}&format=csv`
}

function asked({ by, start, end, zone, isDaily, user }: UsageQuestion): string {
  const params = new URLSearchParams({ by, start: String(start), end: String(end), zone })
  if (isDaily) params.set('daily', 'true')
  if (user !== undefined) params.set('user', user)
  return params.toString()
}
