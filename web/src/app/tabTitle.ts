/** What a tab shows while nobody looks at it: the number of free GPUs in its title and icon. */
import { plain } from '../ui/format'
import type { Route } from '../ui/route'

const PLACES: Partial<Record<Route['page'], string>> = { mine: 'Mine', people: 'People', history: 'History', reservations: 'Reservations', reliability: 'Reliability', compare: 'Compare', events: 'Events', about: 'About', kiosk: 'Kiosk', device: 'Log in a terminal' }

/** `free` is null when it is not known: nothing loaded yet, or the connection is lost. Which page it is comes second:
 * a narrow tab cuts off the end. */
export function pageTitle(free: number | null, route?: Route): string {
  const place = route === undefined ? '' : (PLACES[route.page] ?? (route.page === 'gpu' ? 'GPU' : route.page === 'jobs' ? plain(`Job ${route.name}`).replace(/ $/, 's') : plain(route.name)))
  return [free === null ? '' : `${free} free`, place, 'gpudeck'].filter((part) => part !== '').join(' · ')
}

/** An SVG as a data address. Green only where there is something to take. */
export function faviconAddress(free: number | null): string {
  const text = free === null ? '?' : free > 999 ? '1k' : String(free)
  const fill = free === null || free === 0 ? '#566070' : '#0e7a55'
  const size = { 1: 24, 2: 20 }[text.length] ?? 15
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="6" fill="${fill}"/>` +
    `<text x="16" y="16" dy=".36em" text-anchor="middle" font-family="system-ui,sans-serif" font-weight="700" font-size="${size}" fill="#fff">${text}</text></svg>`
  return `data:image/svg+xml,${encodeURIComponent(svg)}`
}
