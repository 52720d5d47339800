import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { busyGpu, gpu, host, NOW, someProcess } from '../testing/samples'
import { HostEntry } from '../stream/fleetModel'
import GpuPopover from './GpuPopover.svelte'

let drawn: ReturnType<typeof mount> | undefined

beforeEach(() => {
  vi.stubGlobal('fetch', () => new Promise(() => {}))
})

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  drawn = undefined
  document.body.replaceChildren()
  vi.unstubAllGlobals()
})

function show(entry: HostEntry, uuid: string, onClose = (): void => {}): HTMLElement {
  const props = { entry, uuid, anchor: document.body, isOpen: true, copied: null, now: NOW, href: '#/host/gpu01', onEnter: () => {}, onLeave: () => {}, onClose, onCopied: () => {} }
  drawn = mount(GpuPopover, { target: document.body, props })
  flushSync()
  return document.body
}

const words = (page: HTMLElement): string[] => [...page.querySelectorAll('.device :is(a, button)')].map(({ textContent }) => textContent ?? '')

describe('the details of a GPU', () => {
  it('follow its state', () => {
    const entry = new HostEntry(host('gpu01', [gpu()]), NOW)
    const page = show(entry, 'gpu01-0')
    expect(page.querySelector('.state svg')?.classList).toContain('free')
    entry.change({ id: 'gpu01', gpus: [{ uuid: 'gpu01-0', availability: 'busy', users: ['ann'] }] })
    entry.touch()
    flushSync()
    expect(page.querySelector('.state svg')?.classList).toContain('busy')
    expect(page.querySelector('.state')?.textContent).toContain('busy')
  })

  it('follow the GPU, not its place, when the set of GPUs changes', () => {
    const entry = new HostEntry(host('gpu01', [busyGpu('ann'), busyGpu('bob')]), NOW)
    const page = show(entry, 'gpu01-1')
    const [first, second] = entry.untracked.gpus
    entry.replace({ ...entry.untracked, gpus: [second!, first!] }, NOW)
    flushSync()
    expect(page.querySelector('h3')?.textContent).toContain('GPU 1')
    expect(page.querySelector('code')?.textContent).toBe('gpu01-1')
  })

  it('lead to the host, the GPU and whoever is on it', () => {
    const processes = [{ ...someProcess, pid: 7, user: 'ann', command: 'python' }]
    const page = show(new HostEntry(host('gpu01', [busyGpu('ann', { processes })]), NOW), 'gpu01-0')
    const links = [...page.querySelectorAll('.title a, td a')].map((link) => link.getAttribute('href'))
    expect(links).toEqual(['#/host/gpu01', '#/gpu/gpu01-0', '#/user/ann'])
  })

  it('say why something is not known, without a pointer', () => {
    const page = show(new HostEntry(host('gpu01', [busyGpu('ann', { fan_percent: null, reasons: { fan_percent: 'no fan here' } })]), NOW), 'gpu01-0')
    expect([...page.querySelectorAll('.not-known li')].map(({ textContent }) => textContent)).toContain('Fan speed: no fan here')
  })

  it('close when the GPU is gone', () => {
    const onClose = vi.fn()
    const entry = new HostEntry(host('gpu01', [busyGpu('ann'), busyGpu('bob')]), NOW)
    const page = show(entry, 'gpu01-0', onClose)
    entry.replace({ ...entry.untracked, gpus: [{ ...entry.untracked.gpus[1]!, uuid: 'MIG-1' }] }, NOW)
    flushSync()
    expect(page.querySelector('.popover')).toBeNull()
    expect(onClose).toHaveBeenCalled()
  })

  it('offer to use and to reserve a free GPU, but nothing on a host that is down', () => {
    const free = host('gpu01', [gpu()])
    free.gpus[0]!.uuid = 'GPU-1'
    const entry = new HostEntry(free, NOW)
    const page = show(entry, 'GPU-1')
    expect(words(page)).toEqual(['Use it', 'Reserve', 'copy CUDA_VISIBLE_DEVICES', 'GPU page', 'Compare', 'close'])
    entry.change({ id: 'gpu01', status: 'down', gpus: [{ uuid: 'GPU-1', availability: 'unknown', last_seen: 'free' }] })
    entry.touch()
    flushSync()
    expect(page.querySelector('.popover')?.classList).toContain('greyed')
    expect(words(page)).not.toContain('Reserve')
    expect(words(page)).not.toContain('Use it')
  })
})
