/**
 * Colours for people and for things that have an order.
 *
 * A person's hue follows from the name, so that it is mostly the same in every view, every browser and every year. Who
 * comes second to a hue on a page gets the free one that is furthest from all others, for that whole page.
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

/** On the page that is shown: the hue and the turn of each person, in the order in which they came. */
const given = new Map<string, string>()

/** Another page begins: its people are others. */
export function forgetUserColours(): void {
  given.clear()
}

/** Null is who is not known. The same person has the same colour all over a page; no two have the same up to 24 of them. */
export function userColour(user: string | null): string {
  if (user === null) return UNKNOWN_COLOUR
  const known = given.get(user)
  if (known !== undefined) return known
  const colour = freeColour(hash(user) % HUES)
  given.set(user, colour)
  return colour
}

/** The person's own hue if nobody has it, else the free one with the most room around it; their own again when all are taken. */
function freeColour(own: number): string {
  const taken = new Set(given.values())
  for (const turn of [0, 1]) {
    const free = (hue: number): boolean => !taken.has(hueColour(hue, turn))
    if (free(own)) return hueColour(own, turn)
    const others = Array.from({ length: HUES }, (_, hue) => hue)
    const apart = (a: number, b: number): number => Math.min(Math.abs(a - b), HUES - Math.abs(a - b))
    const room = (hue: number): number => Math.min(...others.filter((other) => !free(other)).map((other) => apart(hue, other)))
    const [best] = others.filter(free).sort((a, b) => room(b) - room(a))
    if (best !== undefined) return hueColour(best, turn)
  }
  return hueColour(own)
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
