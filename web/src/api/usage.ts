/** Who used how much. */
import { ask, type Answer } from './ask'
import type { Usage, UsageBy } from './types'

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

/** A hub that does not know the zone is asked for days in UTC: `zone` says which it became. */
export async function readUsage(question: UsageQuestion, signal?: AbortSignal): Promise<Answer<Usage & { zone: string }>> {
  const answer = await ask<Usage>(`api/v1/usage?${asked(question)}`, 'GET', undefined, PATIENCE_MS, signal)
  if ('done' in answer) return { done: { ...answer.done, zone: question.zone } }
  const isZone = answer.refused.status === 400 && answer.refused.message.includes('time zone') && question.zone !== 'UTC'
  return isZone ? readUsage({ ...question, zone: 'UTC' }, signal) : answer
}

/** Where the same is as a file for spreadsheets. */
export function usageSheet(question: UsageQuestion): string {
  return `api/v1/usage.csv?${asked(question)}`
}

function asked({ by, start, end, zone, isDaily, user }: UsageQuestion): string {
  const params = new URLSearchParams({ by, start: String(start), end: String(end), zone })
  if (isDaily) params.set('daily', 'true')
  if (user !== undefined) params.set('user', user)
  return params.toString()
}
