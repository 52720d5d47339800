import { expect, it } from 'vitest'
import { judgeLink } from './link'

it('is connecting before the first event', () => {
  expect(judgeLink(null, 100).phase).toBe('connecting')
})

it('is live through a short hiccup', () => {
  expect(judgeLink(100, 102.9)).toMatchObject({ phase: 'live', greyed: false })
  expect(judgeLink(100, 101.4, true)).toMatchObject({ phase: 'live', greyed: false })
})

it('is not called live for long when the connection broke, nor when nothing comes', () => {
  expect(judgeLink(100, 101.5, true)).toMatchObject({ phase: 'waiting', greyed: false })
  expect(judgeLink(100, 103)).toMatchObject({ phase: 'waiting', greyed: false })
})

it('says after a few seconds that the connection is lost, with the age', () => {
  expect(judgeLink(100, 106)).toEqual({ phase: 'lost', secondsSinceEvent: 6, greyed: false })
})

it('greys everything after ten seconds', () => {
  expect(judgeLink(100, 110)).toMatchObject({ phase: 'lost', greyed: true })
})

it('never counts a negative age when the clock is set back', () => {
  expect(judgeLink(100, 90)).toMatchObject({ phase: 'live', secondsSinceEvent: 0 })
})
