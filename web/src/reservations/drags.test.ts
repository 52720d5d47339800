import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { gpu, host } from '../testing/samples'
import { changeOf, extendBody, dragResult, type Drag } from './drags'
import { marksOf, type ReservationMark } from './marks'
import { planRows } from './rows'
import { gpusOf, reservation } from './samples'

const at = (text: string): number => Date.parse(text) / 1000
const HOUR = 3600
const NOW = at('2026-10-20T12:00+02:00')
const ADA = { name: 'ada', mayReserve: true, mayAdminister: false, canLogIn: false }
const rows = planRows([host('gpu01', [gpu(), gpu(), gpu(), gpu()])], [], { text: '', isReservedOnly: false, expandedHosts: new Map() })
const markOf = (one = reservation()): ReservationMark => marksOf(rows, [one], ADA, new Set(), NOW)[0] as ReservationMark
const result = (drag: Drag) => dragResult(drag, rows, HOUR, NOW)

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

describe('free time that is picked', () => {
  const pick = (fromRow: number, toRow: number, from: string, to: string) => result({ kind: 'pick', from: { row: fromRow, at: at(from) }, to: { row: toRow, at: at(to) } })

  it('is of whole hours, on all rows between, in either direction', () => {
    const wanted = { rows: ['gpu01-0', 'gpu01-1'], gpus: ['gpu01-0', 'gpu01-1'], start: at('2026-10-21T09:00+02:00'), end: at('2026-10-21T12:00+02:00') }
    expect(pick(1, 2, '2026-10-21T09:20+02:00', '2026-10-21T11:10+02:00')).toEqual(wanted)
    expect(pick(2, 1, '2026-10-21T11:10+02:00', '2026-10-21T09:20+02:00')).toEqual(wanted)
  })
  it('of a host is all of its GPUs', () => expect(pick(0, 0, '2026-10-21T09:20+02:00', '2026-10-21T11:10+02:00')).toMatchObject({ rows: ['host gpu01'], gpus: ['gpu01-0', 'gpu01-1', 'gpu01-2', 'gpu01-3'] }))
  it('is not in the past', () => expect(pick(1, 1, '2026-10-20T08:00+02:00', '2026-10-20T11:50+02:00')).toBeNull())
})

describe('a reservation that is dragged', () => {
  const one = reservation({ start: at('2026-10-24T09:20:30.5+02:00'), end: at('2026-10-24T11:20:30.5+02:00'), version: 4 })
  const move = (by: number, row = 1, which = one) => result({ kind: 'move', mark: markOf(which), from: { row: 1, at: which.start + 60 }, to: { row, at: which.start + 60 + by } })!

  it('back to where it was is nothing', () => expect(changeOf(one, 'move', move(20 * 60))).toBeNull())
  it('to another row keeps the time, to the second', () => expect(changeOf(one, 'move', move(-20 * 60, 3))).toEqual({ gpus: ['gpu01-2'], version: 4 }))
  it('to a row that is no GPU stays in its own', () => expect(changeOf(one, 'move', move(0, 0))).toBeNull())
  it('keeps the time of day over a night in which the clock is changed', () => {
    const { start, end } = move(25.2 * HOUR)
    expect(start).toBeCloseTo(at('2026-10-25T09:20:30.5+01:00'), -1)
    expect(end - start).toBe(2 * HOUR)
  })
  it('reaches both of two equal hours', () => {
    const night = reservation({ start: at('2026-10-25T00:30+02:00'), end: at('2026-10-25T01:30+02:00') })
    expect([2, 3, 4].map((hours) => move(hours * HOUR, 1, night).start)).toEqual([at('2026-10-25T02:30+02:00'), at('2026-10-25T02:30+01:00'), at('2026-10-25T03:30+01:00')])
  })
  it('of several GPUs changes none of them', () => {
    const pair = reservation({ gpus: gpusOf('gpu01', 0, 1) })
    expect(changeOf(pair, 'move', move(0, 3, pair))).toBeNull()
    expect(changeOf(pair, 'move', move(HOUR, 3, pair))).toEqual({ start: pair.start + HOUR, version: 1 })
  })
})

describe('a reservation that is stretched', () => {
  const one = reservation({ start: at('2026-10-21T09:00+02:00'), end: at('2026-10-21T12:00+02:00'), version: 4 })
  const stretch = (kind: 'start' | 'end', to: string) => changeOf(one, kind, result({ kind, mark: markOf(one), from: { row: 1, at: one[kind] }, to: { row: 3, at: at(to) } })!)

  it('keeps the other end, and its row', () => {
    expect(stretch('end', '2026-10-21T15:10+02:00')).toEqual({ end: at('2026-10-21T15:00+02:00'), version: 4 })
    expect(stretch('start', '2026-10-21T07:50+02:00')).toEqual({ start: at('2026-10-21T08:00+02:00'), end: one.end, version: 4 })
  })
  it('keeps some length', () => expect(stretch('end', '2026-10-20T15:00+02:00')).toEqual({ end: at('2026-10-21T10:00+02:00'), version: 4 }))
  it('to where it was is nothing', () => expect(stretch('end', '2026-10-21T12:10+02:00')).toBeNull())
  it('by a button is from its end on', () => expect(extendBody(one, HOUR)).toEqual({ end: one.end + HOUR, version: 4 }))
})
