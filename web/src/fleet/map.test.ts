import { describe, expect, it } from 'vitest'
import { entry, gpu, host } from '../testing/samples'
import type { Placed } from './arrange'
import { HostEntry } from '../stream/fleetModel'
import { blocksBetween, cellAt, cornerOf, findAgain, layoutMap, lookOf, MapCells, slotOf, stepOnMap, type MapCell, type MapLayout } from './map'

const placed = (id: string, gpus: number, group?: string): Placed => {
  const states = Array.from({ length: gpus }, () => 'free' as const)
  return { entry: entry(id, states), shown: [...states.keys()], collapsed: false, ...(group === undefined ? {} : { group }) }
}
const told = (cell: MapCell | null): string | null => cell && `${cell.block.placed.entry.id}/${slotOf(cell)}`
const everyCell = ({ blocks }: MapLayout): MapCell[] => blocks.flatMap((block) => Array.from({ length: Math.max(1, block.placed.shown.length) }, (_, at) => ({ block, at })))

describe('the map', () => {
  const board = Array.from({ length: 60 }, (_, i) => placed(`h${i}`, i % 12))

  it('has a cell for each GPU, and one for a host without any', () => {
    expect(layoutMap(board, 500, 400).cells).toBe(board.reduce((sum, { shown }) => sum + Math.max(1, shown.length), 0))
  })

  it('lies within its width, and no two cells lie on each other', () => {
    const layout = layoutMap(board, 500, 400)
    const corners = everyCell(layout).map((cell) => cornerOf(cell, layout.pitch))
    expect(Math.max(...corners.map(({ x }) => x + layout.pitch))).toBeLessThanOrEqual(500)
    expect(Math.max(...corners.map(({ y }) => y + layout.pitch))).toBe(layout.height)
    expect(new Set(corners.map(({ x, y }) => `${x} ${y}`)).size).toBe(layout.cells)
  })

  it('has large cells where there is room, and small ones where there are many GPUs', () => {
    expect(layoutMap(board.slice(0, 4), 1400, 700).pitch).toBeGreaterThan(layoutMap(board, 300, 200).pitch)
    const many = layoutMap(Array<Placed>(9000).fill(placed('h', 8)), 1400, 700)
    expect(many.height).toBeLessThan(2400)
  })

  it('finds each cell where it is drawn, and nothing between hosts', () => {
    const layout = layoutMap(board, 500, 400)
    for (const cell of everyCell(layout)) {
      const { x, y } = cornerOf(cell, layout.pitch)
      expect(told(cellAt(layout, x + 2, y + 2))).toBe(told(cell))
    }
    const last = layout.blocks[8]!
    expect(cellAt(layout, last.x + 8 * layout.pitch + 1, last.y + 1)).toBeNull()
    expect([cellAt(layout, -1, 2), cellAt(layout, 2, layout.height + 1)]).toEqual([null, null])
  })

  it('knows which hosts are in view', () => {
    const layout = layoutMap(board, 500, 400)
    const { y } = layout.lines[2]!
    const [from, until] = blocksBetween(layout, y, y + 1)
    expect([from, until]).toEqual([layout.lines[2]!.from, layout.lines[2]!.until])
    expect(blocksBetween(layout, layout.height + 10, layout.height + 20)).toEqual([0, 0])
  })

  it('begins each group on a line of its own, below its heading', () => {
    const layout = layoutMap([placed('a', 4, '=x'), placed('b', 4, '=x'), placed('c', 4, '=y')], 1400, 700)
    expect(layout.headings.map(({ group }) => group)).toEqual(['=x', '=y'])
    const [a, b, c] = layout.blocks
    const below = layout.headings[0]!.height + layout.nameHeight
    expect([a!.y, b!.y]).toEqual([below, below])
    expect(c!.y).toBe(layout.headings[1]!.y + below)
    expect(c!.x).toBe(0)
  })

  it('is empty without hosts', () => {
    const layout = layoutMap([], 1400, 700)
    expect(layout).toMatchObject({ cells: 0, height: 0 })
    expect([cellAt(layout, 1, 1), stepOnMap(layout, null, 'ArrowDown')]).toEqual([null, null])
  })
})

describe('keys on the map', () => {
  // Two lines: a with 8 and b with 9 GPUs, then c without and d with 3.
  const layout = layoutMap([placed('a', 8), placed('b', 9), placed('c', 0), placed('d', 3)], 470, 700)
  const at = (id: string, cell: number): MapCell => ({ block: layout.blocks.find(({ placed }) => placed.entry.id === id)!, at: cell })
  const step = (cell: MapCell | null, key: string): string | null => told(stepOnMap(layout, cell, key))

  it.each([
    ['a', 0, 'ArrowRight', 'a/1'],
    ['a', 7, 'ArrowRight', 'b/0'],
    ['b', 0, 'ArrowLeft', 'a/7'],
    ['a', 0, 'ArrowLeft', 'a/0'],
    ['b', 0, 'ArrowDown', 'b/8'],
    ['b', 8, 'ArrowUp', 'b/0'],
    ['a', 0, 'ArrowDown', 'c/-1'],
    ['a', 3, 'ArrowDown', 'd/0'],
    ['d', 0, 'ArrowUp', 'a/2'],
    ['a', 3, 'ArrowUp', 'a/3'],
    ['a', 3, 'End', 'd/2'],
    ['d', 1, 'Home', 'a/0'],
  ] as const)('%s/%i %s leads to %s', (id, cell, key, to) => {
    expect(layout.lines.map(({ from, until }) => [from, until])).toEqual([[0, 2], [2, 4]])
    expect(step(at(id, cell), key)).toBe(to)
  })

  it('begin at the first cell, and leave other keys alone', () => {
    expect([step(null, 'ArrowDown'), step(null, 'End')]).toEqual(['a/0', 'd/2'])
    expect(step(at('a', 0), 'x')).toBeNull()
  })
})

it('finds a cell again on another map, by its host and GPU', () => {
  const [a, b] = [placed('a', 4), placed('b', 4)]
  const before = layoutMap([a, b], 1400, 700)
  const cell = { block: before.blocks[1]!, at: 3 }
  expect(told(findAgain(layoutMap([{ ...b, shown: [1, 3] }, a], 1400, 700), cell))).toBe('b/3')
  expect(findAgain(layoutMap([a], 1400, 700), cell)).toBeNull()
})

it('shows the state of each GPU, faults of GPUs, and hosts that are down', () => {
  const ill = new HostEntry(host('ill', [gpu(), gpu({ availability: 'busy', health: 'warning' }), gpu({ availability: 'idle', health: 'critical' })]))
  const board = [
    { entry: ill, shown: [0, 1, 2], collapsed: false },
    { entry: entry('down', ['unknown'], { status: 'down' }), shown: [0], collapsed: false },
    { entry: entry('never', [], { status: 'never_seen' }), shown: [], collapsed: false },
  ]
  const cells = new MapCells(layoutMap(board, 1400, 700))
  const looks = [...cells.codes].map((code) => `${lookOf(code).state} ${lookOf(code).level}`)
  expect(looks).toEqual(['free ok', 'busy warning', 'idle critical', 'unknown critical', 'unknown ok'])
})

it('has room for the names of hosts while they fit into the window', () => {
  const [one, eight] = [placed('one', 1), placed('eight', 8)]
  const layout = layoutMap([one, eight], 1400, 700)
  expect(layout.nameHeight).toBeGreaterThan(0)
  expect(layout.blocks.map(({ y }) => y)).toEqual([layout.nameHeight, layout.nameHeight])
  expect(layout.blocks[0]!.width).toBeGreaterThan(layout.pitch)
  expect(cellAt(layout, 1, layout.nameHeight - 1)).toBeNull()
  expect(cellAt(layout, 1, layout.nameHeight + 1)).toMatchObject({ at: 0 })
  const many = Array<Placed>(2000).fill(placed('h', 8))
  expect(layoutMap(many, 1400, 700).nameHeight).toBe(0)
})
