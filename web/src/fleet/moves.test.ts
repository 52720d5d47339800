import { describe, expect, it } from 'vitest'
import { entry } from '../testing/samples'
import type { Placed } from './arrange'
import { layoutCards, layoutRows, type Layout } from './layout'
import { move, type Direction, type Spot, type View } from './moves'

const card = (id: string, shown: number[], collapsed = false): Placed => ({ entry: entry(id, Array.from({ length: 8 }, () => 'free')), shown, collapsed })

function walk(layout: Layout, view: View, from: Spot | null, ...directions: Direction[]): string {
  const spot = directions.reduce((at, direction) => move(layout, view, at, direction), from)
  return spot === null ? 'nowhere' : `${spot.host} ${spot.slot}`
}

describe('in cards', () => {
  // Two columns: a above c, b above d.
  const layout = layoutCards([card('a', [0, 1, 2]), card('b', [0, 5]), card('d', [0], true), card('c', [3])], 1393)
  const from = (host: string, slot: number) => ({ host, slot })

  it('starts at the first host', () => {
    expect(walk(layout, 'cards', null, 'down')).toBe('a -1')
  })

  it('goes down line by line and on to the card below', () => {
    expect(walk(layout, 'cards', from('a', -1), 'down')).toBe('a 0')
    expect(walk(layout, 'cards', from('b', 0), 'down')).toBe('b 5')
    expect(walk(layout, 'cards', from('b', 5), 'down')).toBe('d -1')
  })

  it('goes up to the last line of the card above', () => {
    expect(walk(layout, 'cards', from('d', -1), 'up')).toBe('b 5')
  })

  it('goes aside at the same height', () => {
    expect(walk(layout, 'cards', from('a', 0), 'right')).toBe('b 0')
    expect(walk(layout, 'cards', from('b', 5), 'left')).toBe('a 1')
  })

  it('stays at the edges', () => {
    expect(walk(layout, 'cards', from('a', -1), 'up')).toBe('a -1')
    expect(walk(layout, 'cards', from('a', 1), 'left')).toBe('a 1')
    expect(walk(layout, 'cards', from('b', 0), 'right')).toBe('b 0')
  })

  it('jumps to the first and the last host', () => {
    expect(walk(layout, 'cards', from('b', 0), 'last')).toBe('c -1')
    expect(walk(layout, 'cards', from('b', 0), 'first')).toBe('a -1')
  })
})

describe('in the table', () => {
  const layout = layoutRows([card('a', [0, 1]), card('b', [7])], 1200)

  it('goes along the GPUs of a host and between hosts', () => {
    expect(walk(layout, 'table', { host: 'a', slot: -1 }, 'right', 'right')).toBe('a 1')
    expect(walk(layout, 'table', { host: 'a', slot: 1 }, 'down')).toBe('b 1')
    expect(walk(layout, 'table', { host: 'b', slot: 1 }, 'up', 'left')).toBe('a 0')
  })

  it('stays at the edges', () => {
    expect(walk(layout, 'table', { host: 'b', slot: 7 }, 'down', 'right')).toBe('b 7')
  })
})

it('goes nowhere on an empty board', () => {
  expect(walk(layoutRows([], 1200), 'table', null, 'down')).toBe('nowhere')
})

it('starts anew when the host it stood on is gone', () => {
  expect(walk(layoutRows([card('a', [0])], 1200), 'table', { host: 'gone', slot: 3 }, 'down')).toBe('a -1')
})
