/** What the hub put into the page itself (api/page.py): who looks, and the first hosts, before anything is asked. */
import type { Fleet, Me } from '../api/types'

/** Of a large fleet these are the first hosts only, and `is_whole` says so. */
export type BootstrapFleet = Fleet & { is_whole?: boolean }

interface Place {
  content: { textContent: string | null }
  remove(): void
}

/** The parts of the browser that are used, so that a test can bring its own. */
export interface PageDocument {
  getElementById(id: string): unknown
}

export class BootstrapData {
  /** Null where the page does not say, as where some proxy made it over. */
  readonly me: Me | null
  private fleet: BootstrapFleet | null

  constructor(page: PageDocument = document) {
    const { me = null, fleet = null } = read(page)
    this.me = me
    this.fleet = fleet
  }

  /** The totals, and of a large fleet the first hosts only; null where they may not be seen. Once: later it is old. */
  takeFleet(): BootstrapFleet | null {
    const { fleet } = this
    this.fleet = null
    return fleet
  }
}

function read(page: PageDocument): { me?: Me | null; fleet?: BootstrapFleet | null } {
  const place = page.getElementById('first-look') as Place | null
  if (place === null) return {}
  place.remove()
  try {
    return JSON.parse(place.content.textContent ?? '')
  } catch {
    return {}
  }
}
