/**
 * Which page the address asks for. It stands behind the `#`, so that it works below any path prefix and behind any
 * proxy: no server ever sees it. The fleet's own filters stay in the query part before it (fleet/address.ts).
 */

export const PAGES = ['fleet', 'mine', 'host', 'gpu', 'people', 'user', 'history', 'reservations', 'reliability', 'compare', 'jobs', 'events', 'about', 'kiosk', 'device'] as const
export type PageName = (typeof PAGES)[number]

export interface Route {
  /** `nowhere`: the address names no page of ours. */
  page: PageName | 'nowhere'
  /** Whose page it is, as the hub calls it: a host's name, a GPU's UUID, a person. Empty for pages of everything. */
  name: string
  params: URLSearchParams
}

/** Pages that are about one thing make no sense without its name; the others take none. */
const OF_ONE: ReadonlySet<string> = new Set<PageName>(['host', 'gpu', 'user'])
/** These are about everything, or about one thing. */
const OF_BOTH: ReadonlySet<string> = new Set<PageName>(['jobs'])

/** Reads `location.hash`. Anything goes in: what cannot be read is nowhere. */
export function parseRoute(hash: string): Route {
  const [path = '', query = ''] = splitOnce(hash.replace(/^#?\/?/, ''), '?')
  const [page = '', rest = ''] = splitOnce(path, '/')
  const params = new URLSearchParams(query)
  const name = decode(rest)
  const found = PAGES.find((known) => known === (page || 'fleet'))
  if (found === undefined || name === null || (!OF_BOTH.has(found) && OF_ONE.has(found) !== (name !== ''))) return { page: 'nowhere', name: '', params }
  return { page: found, name, params }
}

/** The address of a page, for a link. Empty parameters are left out. */
export function hrefOf(page: PageName, name = '', params: URLSearchParams | Record<string, string> = {}): string {
  const kept = [...new URLSearchParams(params)].filter(([, value]) => value !== '')
  const query = new URLSearchParams(kept).toString()
  const path = page === 'fleet' ? '' : page + (name === '' ? '' : `/${encodeURIComponent(name)}`)
  return `#/${path}${query === '' ? '' : `?${query}`}`
}

/** Whether both lead to the same page about the same thing: only its parameters may differ. */
export function isSamePage(a: Route, b: Route): boolean {
  return a.page === b.page && a.name === b.name
}

function splitOnce(text: string, mark: string): [string, string] {
  const at = text.indexOf(mark)
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)]
}

/** Null where the escapes make no sense. */
function decode(text: string): string | null {
  try {
    return decodeURIComponent(text)
  } catch {
    return null
  }
}
