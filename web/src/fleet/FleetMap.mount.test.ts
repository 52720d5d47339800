import { createRawSnippet, flushSync, mount, unmount } from 'svelte'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { busyGpu, gpu, host, NOW, snapshot, totals } from '../testing/samples'
import { Arranger } from './arrange'
import { FleetModel } from '../stream/fleetModel'
import { groupsOn } from './groups'
import { parseQuery } from './query'
import FleetMap from './FleetMap.svelte'
import GroupHead from './GroupHead.svelte'

let drawn: ReturnType<typeof mount> | undefined
let fleet: FleetModel

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  drawn = undefined
  document.body.replaceChildren()
})

function load() {
  fleet = new FleetModel()
  fleet.load(snapshot([host('gpu01', [busyGpu('ann'), gpu()]), host('gpu02', [gpu()])]))
  return new Arranger().arrange(fleet.byName, parseQuery(''), 'name', new Map(), 'model')
}

function apply(delta: object): void {
  fleet.apply({ time: NOW + 1, totals: totals(), ...delta })
  flushSync()
}

const heading = createRawSnippet(() => ({ render: () => '<h2></h2>' }))

function show(onNavigate = vi.fn()): { map: HTMLElement; spoken: () => string; onNavigate: typeof onNavigate } {
  const placed = load()
  drawn = mount(FleetMap, {
    target: document.body,
    props: { placed, groups: groupsOn(placed), heading, pulse: fleet.pulse, now: NOW, isGreyed: false, href: ({ entry }) => `#/host/${entry.id}`, onAttend: () => {}, onNavigate },
  })
  flushSync()
  const map = document.querySelector<HTMLElement>('.map')!
  return { map, spoken: () => document.querySelector('[aria-live]')?.textContent ?? '', onNavigate }
}

function press(map: HTMLElement, key: string): void {
  map.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
  flushSync()
}

describe('the map', () => {
  it('says how many GPUs it has, and that the table has them as text', () => {
    const { map } = show()
    expect(map.getAttribute('aria-label')).toMatch(/3 GPUs.*table/)
  })

  it('says what is in the cell that the keys lead to, and opens its host', () => {
    const { map, spoken, onNavigate } = show()
    press(map, 'ArrowRight')
    expect(spoken()).toMatch(/^gpu01, GPU 0, busy, ann/)
    press(map, 'End')
    expect(spoken()).toMatch(/^gpu02, GPU 0, free/)
    press(map, 'Enter')
    expect(onNavigate).toHaveBeenCalledWith('#/host/gpu02')
    press(map, 'Escape')
    expect(spoken()).toBe('')
  })

  it('follows the GPU of that cell', () => {
    const { map, spoken } = show()
    press(map, 'End')
    apply({ changes: [{ id: 'gpu02', gpus: [{ uuid: 'gpu02-0', availability: 'busy', users: ['bob'] }] }] })
    expect(spoken()).toMatch(/^gpu02, GPU 0, busy, bob/)
    apply({ changes: [{ id: 'gpu02', status: 'down' }] })
    expect(spoken()).toMatch(/^gpu02 \(down\)/)
  })
})

it('the heading of a group counts its GPUs as they are now', () => {
  const [hosts] = groupsOn(load()).values()
  drawn = mount(GroupHead, { target: document.body, props: { hosts: hosts!, pulse: fleet.pulse } })
  flushSync()
  expect(document.querySelector('.state.free')?.textContent).toContain('2')
  apply({ changes: [{ id: 'gpu02', gpus: [{ uuid: 'gpu02-0', availability: 'idle' }] }] })
  expect(document.querySelector('.state.free')?.textContent).toContain('1')
  expect(document.querySelector('.state.idle')?.textContent).toContain('1')
})
