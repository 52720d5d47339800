import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { DISCONNECT_AFTER_SECONDS, watchVisibility } from './visibility'

class FakePage extends EventTarget {
  hidden = false

  show(isShown: boolean): void {
    this.hidden = !isShown
    this.dispatchEvent(new Event('visibilitychange'))
  }
}

let page: FakePage
let frame: EventTarget
let calls: string[]
let end: () => void

beforeEach(() => {
  vi.useFakeTimers()
  page = new FakePage()
  frame = new EventTarget()
  calls = []
  end = watchVisibility(
    () => void calls.push('rest'),
    () => void calls.push('wake'),
    { page, window: frame } as never,
  )
})

afterEach(() => {
  end()
  vi.useRealTimers()
})

it('lets go after a while in the background, and wakes when it is seen', () => {
  page.show(false)
  vi.advanceTimersByTime(DISCONNECT_AFTER_SECONDS * 1000 - 1)
  expect(calls).toEqual([])
  vi.advanceTimersByTime(1)
  expect(calls).toEqual(['rest'])
  page.show(true)
  expect(calls).toEqual(['rest', 'wake'])
})

it('keeps going for who looks at another tab for a moment', () => {
  page.show(false)
  vi.advanceTimersByTime(30_000)
  page.show(true)
  vi.advanceTimersByTime(600_000)
  expect(calls).toEqual([])
})

it('lets go of a page that is left, and wakes where the browser shows it again', () => {
  frame.dispatchEvent(new Event('pagehide'))
  frame.dispatchEvent(new Event('pageshow'))
  expect(calls).toEqual(['rest', 'wake'])
})

it('says nothing after its end', () => {
  end()
  page.show(false)
  vi.advanceTimersByTime(600_000)
  expect(calls).toEqual([])
})
