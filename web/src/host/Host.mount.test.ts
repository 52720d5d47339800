import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { busyGpu, gpu, host, NOW, snapshot, someProcess, totals } from '../testing/samples'
import { Access } from '../account/access.svelte'
import { FleetStore } from '../fleet/fleetStore.svelte'
import { TimeMachine } from '../fleet/timeMachine.svelte'
import { parseRoute } from '../ui/route'
import type { ConnectionListener } from '../stream/connection'
import Gpu from '../gpu/Gpu.svelte'
import Host from './Host.svelte'
import type { PageProps } from '../app/pages'

let drawn: ReturnType<typeof mount> | undefined
let send: ConnectionListener['event']
let store: FleetStore

beforeEach(() => {
  vi.useFakeTimers({ now: NOW * 1000 })
  vi.stubGlobal('fetch', () => new Promise(() => {}))
  store = new FleetStore((listener) => {
    send = (event) => listener.event(event)
    return { start: () => {}, stop: () => {}, want: () => {} }
  }, '')
})

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  drawn = undefined
  document.body.replaceChildren()
  vi.unstubAllGlobals()
  vi.useRealTimers()
})

const process = { ...someProcess, pid: 4711, user: 'ann', command: 'train', started_at: NOW - 3600 }

const ordinary = (): ReturnType<typeof host> => host('gpu01', [busyGpu('ann', { processes: [process] }), gpu()])

function open(page: typeof Host | typeof Gpu, address: string, shown = ordinary()): HTMLElement {
  const fleet = snapshot([shown])
  send({ kind: 'snapshot', id: 'a-1', text: JSON.stringify(fleet) })
  const props: PageProps = { store, timeMachine: new TimeMachine(() => NOW, () => 1), access: new Access(), route: parseRoute(address), onNavigate: () => {}, onDialog: () => {}, onOpenView: () => {}, isCovered: false }
  drawn = mount(page, { target: document.body, props })
  flushSync()
  return document.body
}

/** Half an hour without a report. */
function goDown(): void {
  vi.setSystemTime((NOW + 1800) * 1000)
  const delta = { time: NOW + 1800, totals: totals({ hosts: 1 }), changes: [{ id: 'gpu01', status: 'down', gpus: [{ uuid: 'gpu01-0', availability: 'unknown', last_seen: 'busy' }, { uuid: 'gpu01-1', availability: 'unknown', last_seen: 'free' }] }] }
  send({ kind: 'delta', id: 'a-2', text: JSON.stringify(delta) })
  flushSync()
}

describe('the page of a host', () => {
  it('is greyed when the host goes down while it is open', () => {
    const page = open(Host, '#/host/gpu01')
    expect(page.querySelector('.greyed')).toBeNull()
    expect(page.textContent).toContain('Reserve host')
    goDown()
    expect(page.querySelector('.greyed dl')).not.toBeNull()
    expect(page.querySelector('header b.critical')?.textContent).toBe('down 30m')
    expect(page.textContent).not.toContain('Reserve host')
  })

  it('shows processes as those of the last report, which run no longer since', () => {
    const page = open(Host, '#/host/gpu01')
    expect(page.querySelector('tr.past')).toBeNull()
    goDown()
    expect(page.textContent).toContain('GPUs at the last report')
    const row = [...page.querySelectorAll('tr.past')].find(({ textContent }) => textContent?.includes('4711'))
    expect(row?.querySelector('[data-name=for]')?.textContent).toBe('1h')
  })
})

describe('the page of a host that was never seen', () => {
  it('has no history, and no error in its place', async () => {
    const refusal = { error: { code: 'unknown_host', message: "the history knows no host 'newbox'", hint: '' } }
    const answer = (): Promise<Response> => Promise.resolve(new Response(JSON.stringify(refusal), { status: 404 }))
    vi.stubGlobal('fetch', (url: string | Request) => (/\/(series|history|runs|heat)/.test(typeof url === 'string' ? url : url.url) ? answer() : new Promise(() => {})))
    const page = open(Host, '#/host/newbox', host('newbox', [], { status: 'never_seen' }))
    await vi.advanceTimersByTimeAsync(2000)
    flushSync()
    expect(page.textContent).toContain('newbox')
    expect(page.textContent).not.toContain('knows no host')
  })
})

describe('the page of a GPU', () => {
  it('follows its state and its host', () => {
    const page = open(Gpu, '#/gpu/gpu01-1')
    expect(page.querySelector('.state svg')?.classList).toContain('free')
    expect(page.textContent).toContain('Reserve')
    goDown()
    expect(page.querySelector('.state svg')?.classList).toContain('unknown')
    expect(page.querySelector('header')?.textContent).not.toContain('Reserve')
    expect(page.textContent).toContain('Processes at the last report')
  })
})
