import { expect, it } from 'vitest'
import type { Past } from '../api/history'
import type { Point } from '../api/history'
import { trendText } from './trend'

const past = (unit: string, points: Point[]): Past => ({ metric: 'x', unit, step: 900, start: 0, end: 1, resolution: 'raw', series: [{ points }] })

it('tells mean and extremes of what is known', () => {
  expect(trendText('utilization', past('percent', [[0, 20, null, null], [900, null, null, null], [1800, 60, null, null]]))).toBe(
    'utilization, the last 24 hours: average 40 %, range 20 % to 60 %',
  )
  expect(trendText('free', past('gpus', [[0, 7.2, null, null]]))).toBe('free, the last 24 hours: average 7, range 7 to 7')
})

it('does not take nothing for zero', () => {
  expect(trendText('free', null)).toBe('free: loading')
  expect(trendText('free', past('gpus', [[0, null, null, null]]), 'the last hour')).toBe('free: no data for the last hour')
})
