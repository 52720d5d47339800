import { readFileSync } from 'node:fs'
import { describe, expect, it, test } from 'vitest'
import { alertLevel, AVAILABILITIES, gpuLevel, isAvailability, STACKED, STATES, statusLevel, worstLevel } from './states'

const css = readFileSync(new URL('../app/app.css', import.meta.url), 'utf8')

/** The two sides of a token: light, then dark. */
function token(name: string): [string, string] {
  const found = new RegExp(`--${name}: light-dark\\((#[0-9a-f]{6}), (#[0-9a-f]{6})\\)`).exec(css)
  if (!found) throw new Error(`no token --${name}`)
  return [found[1]!, found[2]!]
}

function channels(hex: string): [number, number, number] {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as [number, number, number]
}

function hue(hex: string): number {
  const [r, g, b] = channels(hex).map((value) => value / 255) as [number, number, number]
  const most = Math.max(r, g, b)
  const spread = most - Math.min(r, g, b)
  const turn = most === r ? (g - b) / spread : most === g ? 2 + (b - r) / spread : 4 + (r - g) / spread
  return (turn * 60 + 360) % 360
}

function luminance(hex: string): number {
  const [r, g, b] = channels(hex).map((value) => {
    const part = value / 255
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
  }) as [number, number, number]
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

function contrast(a: string, b: string): number {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y) as [number, number]
  return (high + 0.05) / (low + 0.05)
}

describe('each state', () => {
  it('has a word, a colour and a shape that no other has', () => {
    for (const part of ['word', 'colour', 'shape', 'meaning'] as const) {
      expect(new Set(AVAILABILITIES.map((state) => STATES[state][part])).size).toBe(AVAILABILITIES.length)
    }
  })

  it('is green, blue, amber or violet, and never red', () => {
    const hues: [string, number, number][] = [['free', 140, 170], ['busy', 205, 225], ['idle', 25, 45], ['reserved', 255, 285]]
    for (const [name, from, to] of hues) {
      for (const colour of token(name)) expect(hue(colour), `${name} ${colour}`).toSatisfy((value: number) => value >= from && value <= to)
    }
  })

  it('is part of the pile', () => {
    expect([...STACKED].sort()).toEqual([...AVAILABILITIES].sort())
    expect(STACKED.slice(0, 2)).toEqual(['busy', 'idle'])
  })

  it('is known by its word', () => {
    expect([isAvailability('idle'), isAvailability('late'), isAvailability('toString')]).toEqual([true, false, false])
  })
})

test.each([
  ['a host that is down', statusLevel('down'), 'critical'],
  ['a host that is late', statusLevel('late'), 'warning'],
  ['a host that was never seen', statusLevel('never_seen'), 'warning'],
  ['a host that is up', statusLevel('up'), 'ok'],
  ['a GPU that is lost', gpuLevel('critical'), 'critical'],
  ['a GPU of which nothing is known', gpuLevel('unknown'), 'ok'],
  ['an alert for information', alertLevel('info'), 'ok'],
  ['the worst of several', worstLevel(['warning', 'critical', 'ok']), 'critical'],
  ['nothing', worstLevel([]), 'ok'],
])('%s has one level everywhere', (_, level, expected) => {
  expect(level).toBe(expected)
})

test('red is left to faults', () => {
  for (const colour of token('critical')) expect(hue(colour)).toSatisfy((value: number) => value < 12 || value > 348)
})

test.each(['free', 'busy', 'idle', 'reserved', 'drained', 'unknown', 'critical', 'warning', 'accent', 'ink', 'muted'])('%s can be read on cards and on paper', (name) => {
  const backs = [token('card'), token('paper')]
  token(name).forEach((colour, scheme) => {
    for (const back of backs) expect(contrast(colour, back[scheme]!), `${colour} on ${back[scheme]}`).toBeGreaterThanOrEqual(4.5)
  })
})
