import { describe, expect, it } from 'vitest'
import { entry } from '../testing/samples'
import type { Placed } from './arrange'
import { cardHeight, layoutCards, layoutRows, measuresFor, visibleBoxes, heightWith } from './layout'

const card = (id: string, gpus: number, collapsed = false): Placed => {
  const states = Array.from({ length: gpus }, () => 'free' as const)
  return { entry: entry(id, states), shown: [...states.keys()], collapsed }
}

const desk = measuresFor(1400)

describe('a card', () => {
  it('grows with its GPUs', () => {
    expect(cardHeight(card('a', 8), desk) - cardHeight(card('b', 4), desk)).toBe(4 * desk.line)
  })

  it('is its title alone when collapsed', () => {
    expect(cardHeight(card('a', 8, true), desk)).toBe(desk.header)
  })

  it('has room for two problems and for the words about a silent host', () => {
    const ill = (problems: number, status: 'up' | 'late' | 'down'): Placed => ({
      entry: entry('a', ['free'], { status, problems: Array.from({ length: problems }, () => 'slow') }),
      shown: [0],
      collapsed: false,
    })
    const notes = (placed: Placed) => (cardHeight(placed, desk) - cardHeight(card('b', 1), desk)) / desk.note
    expect([notes(ill(1, 'up')), notes(ill(5, 'up')), notes(ill(0, 'late')), notes(ill(1, 'down'))]).toEqual([1, 2, 0, 2])
  })
})

describe('the card of a host that was never seen', () => {
  const never = (via: string, problems: string[]): number =>
    cardHeight({ entry: entry('a', [], { status: 'never_seen', via, problems }), shown: [], collapsed: false }, desk) - desk.header

  it('is slim: its title and a sentence', () => {
    expect([never('push', []), never('ssh', [])]).toEqual([desk.note, desk.note])
  })

  it('gives the reason why it could not be read the place of that sentence', () => {
    expect([never('ssh', ['refused']), never('push', ['another host has its name'])]).toEqual([desk.note, 2 * desk.note])
  })
})

describe('cards', () => {
  it.each([
    [366, 1, 'comfortable'],
    [992, 1, 'comfortable'],
    [1393, 2, 'comfortable'],
    [1873, 3, 'comfortable'],
    [366, 1, 'compact'],
    [992, 2, 'compact'],
    [1393, 3, 'compact'],
    [1873, 4, 'compact'],
  ] as const)('at %i px stand in %i columns that fill the width, %s', (width, columns, density) => {
    const { boxes } = layoutCards([0, 1, 2, 3, 4].map((i) => card(`h${i}`, 4)), width, density)
    expect(new Set(boxes.map((box) => box.column)).size).toBe(columns)
    expect(Math.max(...boxes.map((box) => box.x + box.width))).toBeCloseTo(width)
  })

  it('go where there is room first and never overlap', () => {
    const { boxes, height } = layoutCards([card('tall', 8), card('short', 2), card('next', 4)], 1393)
    expect(boxes.map((box) => box.column)).toEqual([0, 1, 1])
    expect(boxes[2]?.y).toBe((boxes[1]?.height ?? 0) + desk.gap)
    expect(height).toBe(Math.max(...boxes.map((box) => box.y + box.height)))
  })

  it('take no room when there are none', () => {
    expect(layoutCards([], 900)).toMatchObject({ boxes: [], headings: [], height: 0 })
  })
})

it('gives a machine with many instances several lines in the table', () => {
  const { boxes, height } = layoutRows([card('a', 8), card('b', 9), card('c', 0)], 1400)
  expect(boxes.map((box) => box.height)).toEqual([desk.row, desk.row + desk.cell, desk.row])
  expect(height).toBe(3 * desk.row + desk.cell)
})

describe('compact', () => {
  it('shows more in the same room, with targets that can be hit', () => {
    const compact = measuresFor(1400, 'compact')
    expect(cardHeight(card('a', 8), compact)).toBeLessThan(cardHeight(card('a', 8), desk))
    expect(Math.min(compact.line, compact.row, compact.cell)).toBeGreaterThanOrEqual(24)
  })

  it('is for a pointer only', () => expect(measuresFor(390, 'compact')).toEqual(measuresFor(390)))
})

it('counts the rows of the table, groups among them, from the one after its head', () => {
  const grouped = ['a', 'b', 'c'].map((id, at): Placed => ({ ...card(id, 8), group: at < 2 ? '=x' : '=y' }))
  const { boxes, headings } = layoutRows(grouped, 1400)
  expect(headings.map(({ group, row }) => [group, row])).toEqual([['=x', 2], ['=y', 5]])
  expect(boxes.map(({ placed, row }) => [placed.entry.id, row])).toEqual([['a', 3], ['b', 4], ['c', 6]])
})

describe('what is visible', () => {
  const layout = layoutRows(Array.from({ length: 1000 }, (_, i) => card(`h${i}`, 8)), 1400)
  const names = (top: number, bottom: number, pinned: string | null = null) => visibleBoxes(layout, top, bottom, pinned).map((box) => box.placed.entry.id)

  it('is what touches the window', () => {
    expect(names(desk.row * 10, desk.row * 12)).toEqual(['h10', 'h11'])
  })

  it('includes the host that holds the focus wherever it is', () => {
    expect(names(0, desk.row, 'h999')).toEqual(['h0', 'h999'])
    expect(names(desk.row * 10, desk.row * 11, 'h3')).toEqual(['h3', 'h10'])
  })
})

describe('hosts that are on their way', () => {
  it('have room as high as those that are here', () => {
    const layout = layoutRows([card('a', 8), card('b', 8)], 1400)
    expect(heightWith(8, 2, layout)).toBe(5 * layout.height)
    expect(heightWith(0, 2, layout)).toBe(layout.height)
  })

  it('have none where nothing is here to go by', () => {
    expect(heightWith(8, 0, layoutRows([], 1400))).toBe(0)
  })
})
