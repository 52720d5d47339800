/** The one time range of all pages that show the past: it stands in the address, and goes along from page to page. */
import { hrefOf, parseRoute, type PageName, type Route } from '../ui/route'

/** What each of these pages shows before a range is chosen. `all`: everything there is. */
const USUAL: Partial<Record<Route['page'], string>> = { gpu: '24h', host: '24h', history: '7d', compare: '24h', reliability: '30d', user: '30d', events: 'all' }
const NAMES = ['range', 'from', 'to', 'start', 'end'] as const

export type TimeParams = Record<string, string>

/** The range that a page shows before one is chosen; null for pages that have no time range. */
export function usualRange(page: Route['page']): string | null {
  return USUAL[page] ?? null
}

/** The part of an address that names a range; empty where it names none. */
export function timeOf(params: URLSearchParams): TimeParams {
  return Object.fromEntries(NAMES.flatMap((name) => (params.has(name) ? [[name, params.get(name) ?? '']] : [])))
}

/** The same address with the range that was chosen before, where it leads to a page that has one and names none. */
export function keepTime(href: string, chosen: TimeParams): string {
  const { page, name, params } = parseRoute(href)
  if (usualRange(page) === null || Object.keys(chosen).length === 0 || Object.keys(timeOf(params)).length > 0) return href
  return hrefOf(page as PageName, name, { ...Object.fromEntries(params), ...chosen })
}
