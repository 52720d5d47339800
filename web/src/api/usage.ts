/** Who used how much, and which programs they ran. */
import { ask, type Answer } from './ask'
import type { Runs, Usage, UsageBy } from './types'

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

export function readUsage(question: UsageQuestion): Promise<Answer<Usage>> {
  return ask(`api/v1/usage?${asked(question)}`, 'GET', undefined, PATIENCE_MS)
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

/** A person's runs that were there at some time in between; `before` is the `next` of the page before. */
export function readRuns(user: string, start: number, end: number, before?: number): Promise<Answer<Runs>> {
  const params = new URLSearchParams({ user, start: String(start), end: String(end), limit: '500' })
  if (before !== undefined) params.set('before', String(before))
  return ask(`api/v1/runs?${params.toString()}`, 'GET', undefined, PATIENCE_MS)
}
