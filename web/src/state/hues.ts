/**
 * A colour for a person: the same in every view, every browser and every year, because it follows from the name alone.
 *
 * Hue and lightness both differ, so that two people whose hues are near are still told apart.
 */

const HUES = 15
const TINTS: readonly [light: number, dark: number][] = [
  [0.58, 0.74],
  [0.46, 0.84],
  [0.68, 0.64],
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

/** Null is who is not known. `shift` keeps the hue and takes another tint: for somebody beside one who has the same. */
export function personColour(user: string | null, shift = 0): string {
  if (user === null) return UNKNOWN_COLOUR
  const value = hash(user)
  return colour((value % HUES) * (360 / HUES), (Math.floor(value / HUES) + shift) % TINTS.length)
}

/** The n-th of a few things that have an order, such as the GPUs of a host. */
export function orderColour(position: number): string {
  // The golden angle: neighbours are far apart, however many there are.
  return colour((250 + position * 137.5) % 360, position % TINTS.length)
}

function colour(hue: number, tint: number): string {
  const [light, dark] = TINTS[tint] ?? TINTS[0]!
  return `light-dark(oklch(${light} 0.14 ${hue.toFixed(0)}), oklch(${dark} 0.12 ${hue.toFixed(0)}))`
}
