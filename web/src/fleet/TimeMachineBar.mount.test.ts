import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { gpu, host, NOW, snapshot } from '../testing/samples'
import TimeMachineBar from './TimeMachineBar.svelte'
import { TimeMachine } from './timeMachine.svelte'

let drawn: ReturnType<typeof mount> | undefined
let machine: TimeMachine
const onLeave = vi.fn()

beforeEach(() => {
  vi.useFakeTimers({ now: NOW * 1000 })
  const mark = { id: '1', at: NOW - 1800, kind: 'alert_fired', severity: 'critical' as const, host: 'gpu01', host_id: 'h', gpu: null, label: null, user: null, title: 'GPU lost', detail: '' }
  machine = new TimeMachine(
    () => NOW,
    () => 1,
    (at) => Promise.resolve({ done: { ...snapshot([host('gpu01', [gpu()])]), time: at, as_of: at, coverage: 0.98, resolution: 'quarter_hour' } }),
    () => Promise.resolve({ done: { events: [mark] } }),
  )
  machine.go(NOW - 3600)
  drawn = mount(TimeMachineBar, { target: document.body, props: { machine, onLeave } })
})

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  document.body.replaceChildren()
  vi.useRealTimers()
})

async function settle(): Promise<void> {
  await vi.advanceTimersByTimeAsync(200)
  flushSync()
}

test('it says how much was recorded, and of what', async () => {
  flushSync()
  expect(document.querySelector('[role=status]')?.textContent?.trim()).toBe('Loading…')
  await settle()
  expect(document.querySelector('[role=status]')?.textContent?.trim()).toBe('Coverage 98 % · means of a quarter hour')
})

test('a mark leads to its moment', async () => {
  await settle()
  const mark = document.querySelector<HTMLButtonElement>('.mark')!
  expect(mark.title).toContain('gpu01: GPU lost')
  mark.click()
  expect(machine.at).toBe(NOW - 1800)
})

test('the slider and the buttons choose a moment, and one leads back to live', async () => {
  await settle()
  const slider = document.querySelector<HTMLInputElement>('input[type=range]')!
  slider.value = String(NOW - 600)
  slider.dispatchEvent(new Event('input', { bubbles: true }))
  expect(machine.at).toBe(NOW - 600)
  const press = (name: string): void => [...document.querySelectorAll('button')].find((button) => (button.getAttribute('aria-label') ?? button.textContent) === name)?.click()
  press('Earlier')
  expect(machine.at).toBe(NOW - 600 - machine.step)
  press('Back to live')
  expect(onLeave).toHaveBeenCalledOnce()
})
