import { expect, it, test } from 'vitest'
import { hrefOf, isSamePage, parseRoute } from './route'

test.each(['', '#', '#/', '/'])('%j is the fleet', (hash) => expect(parseRoute(hash)).toMatchObject({ page: 'fleet', name: '' }))

test.each([
  ['#/people', 'people', ''],
  ['#/host/gpu07', 'host', 'gpu07'],
  ['#/gpu/GPU-1%2F2', 'gpu', 'GPU-1/2'],
  ['#/user/a%20b%3Fc', 'user', 'a b?c'],
  ['#/history?metric=power_watts', 'history', ''],
])('%s leads to its page', (hash, page, name) => expect(parseRoute(hash)).toMatchObject({ page, name }))

test.each(['#/nothing', '#/host', '#/host/', '#/people/ada', '#/host/%E0%A4%A', '#first-admin=x', '#/__proto__'])('%s leads nowhere', (hash) =>
  expect(parseRoute(hash).page).toBe('nowhere'),
)

it('reads the parameters', () => {
  expect([...parseRoute('#/events?kind=gpu&q=a%26b?').params]).toEqual([['kind', 'gpu'], ['q', 'a&b?']])
})

test.each(['gpu07', '<script>', '../x', 'a/b?c#d&e=f', '‮abc', '🦊', '100%', 'x'.repeat(300)])('the name %j survives its address', (name) => {
  expect(parseRoute(hrefOf('host', name, { from: name }))).toMatchObject({ page: 'host', name })
  expect(parseRoute(hrefOf('host', name, { from: name })).params.get('from')).toBe(name)
})

it('writes short addresses', () => {
  expect(hrefOf('fleet')).toBe('#/')
  expect(hrefOf('events', '', { kind: '', q: 'lost' })).toBe('#/events?q=lost')
})

it('tells another page from other parameters', () => {
  expect(isSamePage(parseRoute('#/events?a=1'), parseRoute('#/events'))).toBe(true)
  expect(isSamePage(parseRoute('#/host/a'), parseRoute('#/host/b'))).toBe(false)
})

it('knows the page of reservations', () => expect(parseRoute('#/reservations?view=day').page).toBe('reservations'))
