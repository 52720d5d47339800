import { describe, expect, it } from 'vitest'
import { StableRows } from './stableRows'

const rows = (...keys: string[]): { key: string }[] => keys.map((key) => ({ key }))
const shown = (placed: { row: { key: string }; isGone: boolean }[]): string => placed.map(({ row, isGone }) => (isGone ? `(${row.key})` : row.key)).join(' ')

describe('rows under a pointer', () => {
  it('keep their places, with who comes at the end and a place for who leaves', () => {
    const still = new StableRows()
    expect(shown(still.arrange(rows('a', 'b', 'c'), '', 100))).toBe('a b c')
    still.attend(101)
    expect(shown(still.arrange(rows('d', 'c', 'a'), '', 104))).toBe('a (b) c d')
  })

  it('take their new places once nobody is at work on them', () => {
    const still = new StableRows()
    still.arrange(rows('a', 'b'), '', 100)
    still.attend(101)
    still.arrange(rows('b', 'c'), '', 103)
    expect(shown(still.arrange(rows('b', 'c'), '', 106))).toBe('b c')
  })

  it('are arranged at once for another question', () => {
    const still = new StableRows()
    still.arrange(rows('a', 'b'), 'gpus', 100)
    still.attend(100)
    expect(shown(still.arrange(rows('b', 'a'), 'user', 100))).toBe('b a')
  })

  it('are not arranged again with every update', () => {
    const still = new StableRows()
    still.arrange(rows('a', 'b'), '', 100)
    expect(shown(still.arrange(rows('b', 'a'), '', 101))).toBe('a b')
    expect(shown(still.arrange(rows('b', 'a'), '', 102))).toBe('b a')
  })

  it('bring the new figures in the old places', () => {
    const still = new StableRows<{ key: string; figure: number }>()
    still.arrange([{ key: 'a', figure: 1 }], '', 100)
    expect(still.arrange([{ key: 'a', figure: 2 }], '', 101)[0]?.row.figure).toBe(2)
  })
})
