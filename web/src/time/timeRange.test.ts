import { expect, test } from 'vitest'
import { keepTime, timeOf, usualRange } from './timeRange'

const time = (text: string) => timeOf(new URLSearchParams(text))

test('an address names a range in one of three ways, or none', () => {
  expect(time('range=7d&by=host')).toEqual({ range: '7d' })
  expect(time('start=5&end=9')).toEqual({ start: '5', end: '9' })
  expect(time('from=2026-01-01&to=2026-01-02')).toEqual({ from: '2026-01-01', to: '2026-01-02' })
  expect(time('q=x')).toEqual({})
})

test('the range goes along to each page that shows the past', () => {
  expect(keepTime('#/host/gpu%2F01', { range: '7d' })).toBe('#/host/gpu%2F01?range=7d')
  expect(keepTime('#/events?kind=xid', { start: '5', end: '9' })).toBe('#/events?kind=xid&start=5&end=9')
  expect(keepTime('#/history', {})).toBe('#/history')
})

test('a link with a range of its own, and a page without one, stay as they are', () => {
  expect(keepTime('#/gpu/GPU-1?range=1h', { range: '7d' })).toBe('#/gpu/GPU-1?range=1h')
  for (const href of ['#/', '#/reservations', '#/people', '#/about', '#/nonsense']) expect(keepTime(href, { range: '7d' })).toBe(href)
})

test('each page has a range before one is chosen', () => {
  expect(['gpu', 'host', 'history', 'reliability', 'user', 'events', 'fleet'].map((page) => usualRange(page as 'gpu'))).toEqual(['24h', '24h', '7d', '30d', '30d', 'all', null])
})
