/** What may be said about the connection, from the age of the last event alone: a short hiccup alarms nobody. */

/** Seconds without an event after which the page says that the connection is lost. The hub sends one every second. */
export const LOST_AFTER_SECONDS = 4
/** Seconds without an event after which nothing on the page may look current. */
export const GREYED_AFTER_SECONDS = 10

export type LinkPhase = 'connecting' | 'live' | 'lost'

export interface Link {
  phase: LinkPhase
  /** Seconds since the last event; 0 before the first one. */
  secondsSinceEvent: number
  greyed: boolean
}

/** The page was out of sight and has let go: what it shows is old, and nothing is wrong. */
export const RESTING: Link = { phase: 'connecting', secondsSinceEvent: 0, greyed: true }

/** Both times in seconds of this machine's clock; `lastEventAt` is null before the first event. */
export function judgeLink(lastEventAt: number | null, now: number): Link {
  if (lastEventAt === null) return { phase: 'connecting', secondsSinceEvent: 0, greyed: false }
  const secondsSinceEvent = Math.max(0, now - lastEventAt)
  return {
    phase: secondsSinceEvent < LOST_AFTER_SECONDS ? 'live' : 'lost',
    secondsSinceEvent,
    greyed: secondsSinceEvent >= GREYED_AFTER_SECONDS,
  }
}
