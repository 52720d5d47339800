import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { NavigationHistory } from './navigationHistory'

let stops: string[]
let trail: NavigationHistory

const at = (text: string) => ({ text, view: null, sort: 'free', group: 'host' }) as const

beforeEach(() => {
  vi.useFakeTimers()
  stops = ['']
  trail = new NavigationHistory({
    search: () => stops.at(-1)!,
    push: (search) => stops.push(search),
    replace: (search) => (stops[stops.length - 1] = search),
  })
})

afterEach(() => {
  trail.stop()
  vi.useRealTimers()
})

async function type(...texts: string[]): Promise<void> {
  for (const text of texts) {
    trail.follow(at(text), true)
    await vi.advanceTimersByTimeAsync(200)
  }
}

it('makes every choice a stop', () => {
  trail.follow(at('free'), false)
  trail.follow({ ...at('free'), view: 'table' }, false)
  expect(stops).toEqual(['', '?q=free', '?q=free&view=table'])
})

it('makes one stop of what is typed', async () => {
  await type('f', 'fr', 'free')
  expect(stops).toEqual(['', '?q=free'])
})

it('begins another stop after a pause', async () => {
  await type('free')
  await vi.advanceTimersByTimeAsync(2000)
  await type('free h', 'free h200')
  expect(stops).toEqual(['', '?q=free', '?q=free+h200'])
})

it('begins another stop after Enter', async () => {
  await type('free')
  trail.settle()
  await type('busy')
  expect(stops).toEqual(['', '?q=free', '?q=busy'])
})

it('takes what was typed right before Enter as a whole', async () => {
  trail.follow(at('free'), true)
  trail.settle()
  await type('busy')
  expect(stops).toEqual(['', '?q=free', '?q=busy'])
})

it('leaves a stop that a person came back to as it is', () => {
  stops = ['', '?sort=name&q=free%20h200']
  trail.follow({ text: 'free h200', view: null, sort: 'name', group: 'host' }, false)
  expect(stops).toEqual(['', '?sort=name&q=free%20h200'])
})
