/** What may be said about the connection, from the age of the last event and whether the browser has lost it. */

/** Seconds without an event after which nothing is called live any more: where the connection broke, and where nothing but
 * silence says so. The hub sends an event every second, and a slow network may hold one or two back. */
export const WAITING_AFTER_SECONDS = { broken: 1.5, silent: 3 }
/** Seconds without an event after which the page says that the connection is lost. The hub sends one every second. */
export const LOST_AFTER_SECONDS = 4
/** Seconds without an event after which nothing on the page may look current. */
export const GREYED_AFTER_SECONDS = 10

export type LinkPhase = 'connecting' | 'live' | 'waiting' | 'lost'

export interface Link {
  phase: LinkPhase
  /** Seconds since the last event; 0 before the first one. */
  secondsSinceEvent: number
  greyed: boolean
}

/** The page was out of sight and has let go: what it shows is old, and nothing is wrong. */
export const RESTING: Link = { phase: 'connecting', secondsSinceEvent: 0, greyed: true }

/** Both times in seconds of this machine's clock; `lastEventAt` is null before the first event. `isBroken`: the connection
 * has ended since then. */
export function judgeLink(lastEventAt: number | null, now: number, isBroken = false): Link {
  if (lastEventAt === null) return { phase: 'connecting', secondsSinceEvent: 0, greyed: false }
  const secondsSinceEvent = Math.max(0, now - lastEventAt)
  return {
    phase: secondsSinceEvent >= LOST_AFTER_SECONDS ? 'lost' : secondsSinceEvent >= WAITING_AFTER_SECONDS[isBroken ? 'broken' : 'silent'] ? 'waiting' : 'live',
    secondsSinceEvent,
    greyed: secondsSinceEvent >= GREYED_AFTER_SECONDS,
  }
}
