/** Keys that work on every page: `/` `?` and `g` with a letter of a page. */
import type { PageName } from '../ui/route'

export type Command = 'search' | 'help' | { go: PageName }

/** Milliseconds in which the second of two keys has to follow the first. */
export const PAIR_MS = 1500
const TARGETS: Record<string, PageName> = { f: 'fleet', m: 'mine', p: 'people', h: 'history', e: 'events', r: 'reservations', l: 'reliability', a: 'about' }

export class Shortcuts {
  private waitsUntil = 0

  /** What a key means at this time, in milliseconds; undefined: nothing to the page as a whole; null: half of a pair. */
  press(key: string, now: number): Command | null | undefined {
    const isSecond = now < this.waitsUntil
    this.waitsUntil = 0
    const target = isSecond && Object.hasOwn(TARGETS, key) ? TARGETS[key] : undefined
    if (target !== undefined) return { go: target }
    if (key === 'g') {
      this.waitsUntil = now + PAIR_MS
      return null
    }
    if (key === '/') return 'search'
    return key === '?' ? 'help' : undefined
  }
}
