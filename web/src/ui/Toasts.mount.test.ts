import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { SHOWN_SECONDS, toasts } from './toasts.svelte'
import Toasts from './Toasts.svelte'

let drawn: ReturnType<typeof mount>[] = []

beforeEach(() => vi.useFakeTimers())

afterEach(async () => {
  for (const each of drawn) await unmount(each)
  drawn = []
  for (const { id } of toasts.shown) toasts.dismiss(id)
  document.body.replaceChildren()
  vi.useRealTimers()
})

function show(target: Element = document.body): ReturnType<typeof mount> {
  const made = mount(Toasts, { target })
  drawn.push(made)
  flushSync()
  return made
}

const texts = (): string[] => [...document.querySelectorAll('.toast > span')].map(({ textContent }) => textContent?.trim() ?? '')

function press(name: string): void {
  const button = [...document.querySelectorAll('button')].find((each) => each.textContent === name || each.getAttribute('aria-label') === name)
  button?.click()
  flushSync()
}

async function settle(): Promise<void> {
  await vi.advanceTimersByTimeAsync(0)
  flushSync()
}

describe('toasts', () => {
  it('are said in a region that was there before them, and leave after a while', () => {
    show()
    expect(document.querySelector('[role=status]')?.textContent?.trim()).toBe('')
    toasts.show('Reserved')
    flushSync()
    expect(document.querySelector('[role=status]')?.textContent).toContain('Reserved')
    vi.advanceTimersByTime(SHOWN_SECONDS * 1000)
    flushSync()
    expect(texts()).toEqual([])
  })

  it('offer no way to undo what was changed again meanwhile', () => {
    const undo = { run: () => Promise.resolve({ done: {} }), done: 'Undone' }
    show()
    toasts.show('Reserved', undo, ['reservation 1'])
    toasts.show('Muted', undo, ['mute 2'])
    toasts.show('Reservation 1 released', undo, ['reservation 1'])
    flushSync()
    expect(texts()).toEqual(['Muted', 'Reservation 1 released'])
  })

  it.each([
    ['mouseenter', 'mouseleave'],
    ['focusin', 'focusout'],
  ])('wait while somebody is at them (%s)', (come, go) => {
    show()
    toasts.show('Reserved')
    flushSync()
    const toast = document.querySelector('.toast')
    toast?.dispatchEvent(new Event(come, { bubbles: true }))
    vi.advanceTimersByTime(SHOWN_SECONDS * 3000)
    flushSync()
    expect(texts()).toEqual(['Reserved'])
    toast?.dispatchEvent(new Event(go, { bubbles: true }))
    vi.advanceTimersByTime(SHOWN_SECONDS * 1000)
    flushSync()
    expect(texts()).toEqual([])
  })

  it('undo once, and say so', async () => {
    const run = vi.fn(async () => ({ done: {} }))
    const after = vi.fn()
    show()
    toasts.show('Reserved', { run, done: 'Reservation cancelled', after })
    flushSync()
    press('Undo')
    await settle()
    expect(run).toHaveBeenCalledOnce()
    expect(after).toHaveBeenCalledOnce()
    expect(texts()).toEqual(['Reservation cancelled'])
  })

  it('say why something could not be undone, until it is dismissed', async () => {
    show()
    toasts.show('Released', { run: async () => ({ refused: { status: 409, message: 'bob has reserved it' } }), done: '' })
    flushSync()
    press('Undo')
    await settle()
    vi.advanceTimersByTime(SHOWN_SECONDS * 5000)
    flushSync()
    expect(texts()).toEqual(['Not undone. bob has reserved it.'])
    press('Dismiss')
    expect(texts()).toEqual([])
  })

  it('undo the newest with Ctrl+Z, but not while somebody types', async () => {
    const first = vi.fn(async () => ({ done: {} }))
    const second = vi.fn(async () => ({ done: {} }))
    show()
    const input = document.body.appendChild(document.createElement('input'))
    toasts.show('one', { run: first, done: 'first' })
    toasts.show('two', { run: second, done: 'second' })
    flushSync()
    input.dispatchEvent(new KeyboardEvent('keydown', { key: 'z', ctrlKey: true, bubbles: true }))
    await settle()
    expect(second).not.toHaveBeenCalled()
    document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'z', ctrlKey: true, bubbles: true }))
    await settle()
    expect([first.mock.calls.length, second.mock.calls.length]).toEqual([0, 1])
  })

  it('are drawn in the dialog that was opened last, and in the page once it is gone', async () => {
    show()
    const dialog = document.body.appendChild(document.createElement('dialog'))
    const inside = show(dialog)
    toasts.show('Removed')
    flushSync()
    expect(texts()).toEqual(['Removed'])
    expect(dialog.textContent).toContain('Removed')
    drawn.pop()
    await unmount(inside)
    dialog.remove()
    flushSync()
    expect(texts()).toEqual(['Removed'])
  })

  it('are three at most', () => {
    show()
    for (const text of ['1', '2', '3', '4']) toasts.show(text)
    flushSync()
    expect(texts()).toEqual(['2', '3', '4'])
  })
})
