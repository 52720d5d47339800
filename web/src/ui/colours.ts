/**
 * Colours for people and for things that have an order.
 *
 * A person has the same hue in every view, every browser and every year, because it follows from the name alone. Within
 * one chart no two people look alike: who comes second to a hue gets the free one that is furthest from all others.
 * Reds are left out: they stand for faults.
 */

const HUES = 12
/** Degrees: from the end of the reds, all the way round to where they begin. */
const [FIRST, SPAN] = [50, 310]
/** Neighbouring hues differ in lightness as well. */
const TINTS: readonly [light: number, dark: number][] = [
  [0.6, 0.76],
  [0.46, 0.66],
]
/** People nobody could name. */
export const UNKNOWN_COLOUR = 'var(--unknown)'

/** FNV-1a: short names that differ in one letter lie far apart. */
function hash(text: string): number {
  let value = 0x811c9dc5
  for (const byte of new TextEncoder().encode(text)) value = Math.imul(value ^ byte, 0x01000193) >>> 0
  // Its low bits alone are poor for names that end alike.
  return (value ^ (value >>> 15)) >>> 0
}

/** Null is who is not known. */
export function userColour(user: string | null): string {
  return user === null ? UNKNOWN_COLOUR : hueColour(hash(user) % HUES)
}

/** The colours of the people in one chart, who come in the order of their size: all different up to twelve of them. */
export function userColours(users: readonly (string | null)[]): string[] {
  const taken = new Set<number>()
  return users.map((user) => {
    if (user === null) return UNKNOWN_COLOUR
    const own = hash(user) % HUES
    const hue = taken.has(own) ? furthest(taken, own) : own
    taken.add(hue)
    return hueColour(hue)
  })
}

/** The free hue with the most room around it; the first again when all are taken. */
function furthest(taken: ReadonlySet<number>, own: number): number {
  const free = Array.from({ length: HUES }, (_, hue) => hue).filter((hue) => !taken.has(hue))
  const room = (hue: number): number => Math.min(...[...taken].map((other) => Math.min(Math.abs(hue - other), HUES - Math.abs(hue - other))))
  return free.reduce((best, hue) => (best === own || room(hue) > room(best) ? hue : best), own)
}

/** The n-th of a few things that have an order, such as the GPUs of a host. */
export function orderColour(position: number): string {
  // Steps of five go through all twelve, and neighbours are far apart; the second time round the tint is the other one.
  return hueColour((7 + position * 5) % HUES, Math.floor(position / HUES) % 2)
}

function hueColour(hue: number, turn = 0): string {
  const [light, dark] = TINTS[(hue + turn) % TINTS.length]!
  const angle = (FIRST + (hue * SPAN) / (HUES - 1)) % 360
  return `light-dark(oklch(${light} 0.14 ${angle.toFixed(0)}), oklch(${dark} 0.12 ${angle.toFixed(0)}))`
}
