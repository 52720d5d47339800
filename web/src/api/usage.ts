/** Who used how much. */
import { addressOf, request, type Answer } from './request'
import type { components } from './schema'
import type { Usage, UsageBy } from './types'

/** `series` are curves of the fleet, one a metric. `until` is when the figures end, Unix seconds. */
export type Overview = components['schemas']['Overview']

/** A year of a large fleet takes the hub longer than a look at the live one. */
const TIMEOUT_MS = 60_000

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
  return inZone(question.zone, (zone) => request('get', '/api/v1/usage', { query: asked({ ...question, zone }), timeoutMs: TIMEOUT_MS, signal }))
}

export interface OverviewQuestion {
  by: 'user' | 'group' | 'host' | 'model'
  start: number
  end: number
  zone: string
  /** About so many of each curve. */
  points: number
  /** Whether the map of the hosts is wanted. */
  heat: boolean
}

/** Everything that the History page shows of a period. */
export function readOverview(question: OverviewQuestion, signal?: AbortSignal): Promise<Answer<Zoned<Overview>>> {
  return inZone(question.zone, (zone) => request('get', '/api/v1/history/overview', { query: { ...question, zone }, timeoutMs: TIMEOUT_MS, signal }))
}

/** A hub that does not know the zone is asked for days in UTC: `zone` says which it became. */
async function inZone<T extends object>(zone: string, question: (zone: string) => Promise<Answer<T>>): Promise<Answer<Zoned<T>>> {
  const answer = await question(zone)
  if ('done' in answer) return { done: { ...answer.done, zone } }
  const isZone = answer.refused.status === 400 && answer.refused.message.includes('time zone') && zone !== 'UTC'
  return isZone ? inZone('UTC', question) : answer
}

export type Waste = components['schemas']['Waste']
export type WasteRow = components['schemas']['WasteRow']
export type WastedHours = components['schemas']['WastedHours']

export function readWaste(query: Omit<UsageQuestion, 'isDaily'>, signal?: AbortSignal): Promise<Answer<Waste>> {
  return request('get', '/api/v1/waste', { query, timeoutMs: 2 * TIMEOUT_MS, signal })
}

/** Where the same is as a file for spreadsheets. */
export function usageSheet(question: UsageQuestion): string {
  return addressOf('/api/v1/usage', { query: { ...asked(question), format: 'csv' } })
}

const asked = ({ isDaily, ...question }: UsageQuestion) => ({ ...question, ...(isDaily ? { daily: true } : {}) })
