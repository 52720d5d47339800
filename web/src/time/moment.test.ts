import { describe, expect, it } from 'vitest'
import { readMoment } from './moment'

const NOW = new Date(2026, 10, 18, 9, 30).getTime() / 1000

const at = (...parts: [number, number, number, number, number]): number => new Date(...parts).getTime() / 1000

describe('a typed moment', () => {
  it.each([
    ['gpu05:3 yesterday 03:12', at(2026, 10, 17, 3, 12), 'gpu05:3'],
    ['yesterday 3:12 gpu05:3', at(2026, 10, 17, 3, 12), 'gpu05:3'],
    ['gpu05:3 at 03:12 yesterday', at(2026, 10, 17, 3, 12), 'gpu05:3'],
    ['03:12', at(2026, 10, 18, 3, 12), ''],
    ['gpu05 22:00', at(2026, 10, 17, 22, 0), 'gpu05'],
    ['today 08:00', at(2026, 10, 18, 8, 0), ''],
    ['gpu05:3 nov 15 03:12', at(2026, 10, 15, 3, 12), 'gpu05:3'],
    ['december 24 10:00', at(2025, 11, 24, 10, 0), ''],
    ['2026-11-01 12:00 ruth', at(2026, 10, 1, 12, 0), 'ruth'],
    ['on Monday 14:00', at(2026, 10, 16, 14, 0), ''],
    ['wednesday 14:00', at(2026, 10, 11, 14, 0), ''],
    ['gpu05 2h ago', NOW - 7200, 'gpu05'],
    ['-90m', NOW - 5400, ''],
  ])('%s', (text, unix, rest) => {
    expect(readMoment(text, NOW)).toEqual({ at: unix, rest })
  })

  it.each(['', 'gpu05:3', 'gpu05:30', 'yesterday', '25:00', '03:72', 'today 23:00', '2026-12-01 10:00', 'gpu-01 free', 'rtx-4090'])('%s is none', (text) => {
    expect(readMoment(text, NOW)).toBeNull()
  })
})
