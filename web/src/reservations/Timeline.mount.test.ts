import { flushSync, mount, unmount } from 'svelte'
import { expect, test } from 'vitest'
import type { GpuUse } from './gpuUse'
import type { Row } from './rows'
import Timeline from './Timeline.svelte'
import { viewAround } from './views'

const row: Row = { kind: 'gpu', id: 'GPU-0', host: 'gpu01', title: '0', detail: 'H100', label: '0', isThere: true }
const use: GpuUse = { state: 'busy', who: 'ann', label: 'In use by ann', part: 0.5 }

/** The timeline of the day of `day`, seen at `now`. */
function show(day: number, now: number): { band: HTMLElement | null; past: HTMLElement | null } {
  const props = { view: viewAround('day', day), rows: [row], marks: [], now, useOf: () => use, onPick: () => {}, onChange: async () => {}, onRefuse: () => {}, onOpen: () => {}, onExpand: () => {} }
  const drawn = mount(Timeline, { target: document.body, props })
  flushSync()
  const found = { band: document.querySelector<HTMLElement>('.use'), past: document.querySelector<HTMLElement>('.past') }
  void unmount(drawn)
  return found
}

const NOON = new Date(2026, 10, 17, 12).getTime() / 1000

test('current use begins now: what was used before is not shown as if all of it were known', () => {
  const { band, past } = show(NOON, NOON)
  expect(band?.style.left).toBe('50%')
  expect(band?.style.height).toBe('50%')
  expect(past?.style.width).toBe('50%')
})

test('a day that is over is all past, and one that comes shows no use of today', () => {
  const [over, later] = [show(NOON - 86_400, NOON), show(NOON + 86_400, NOON)]
  expect([over.band, over.past?.style.width]).toEqual([null, '100%'])
  expect([later.band, later.past]).toEqual([null, null])
})
