import { expect, test } from 'vitest'
import { keepLogin, keptLogin, monthStart } from './mine'

test('a month begins by the calendar of the viewer', () => {
  expect(monthStart(new Date(2026, 10, 17, 12).getTime() / 1000)).toBe(new Date(2026, 10, 1).getTime() / 1000)
})

test('without a place to keep it, no login is known', () => {
  keepLogin('ann')
  expect(['', 'ann']).toContain(keptLogin())
  keepLogin('')
  expect(keptLogin()).toBe('')
})
