import { expect, it } from 'vitest'
import { Shortcuts, PAIR_MS } from './shortcuts'

const press = (...pressed: string[]) => {
  const keys = new Shortcuts()
  return pressed.map((key, i) => keys.press(key, i * 100)).at(-1)
}

it('goes to a page with two keys', () => {
  expect(press('g', 'p')).toEqual({ go: 'people' })
  expect(press('g', 'g', 'e')).toEqual({ go: 'events' })
})

it('goes nowhere with one of them', () => {
  expect([press('p'), press('g'), press('g', 'x', 'p')]).toEqual([undefined, null, undefined])
})

it('forgets the first key after a while', () => {
  const keys = new Shortcuts()
  keys.press('g', 0)
  expect(keys.press('f', PAIR_MS)).toBeUndefined()
})

it('searches and helps', () => {
  expect([press('/'), press('?'), press('g', '/')]).toEqual(['search', 'help', 'search'])
})
