import { flushSync, mount, unmount } from 'svelte'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { busyGpu, GIB, gpu, host, NOW, someAlert } from '../testing/samples'
import { HostEntry } from '../stream/fleetModel'
import HostCard from './HostCard.svelte'

let drawn: ReturnType<typeof mount> | undefined

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  drawn = undefined
  document.body.replaceChildren()
})

function show(entry: HostEntry, onToggle = (): void => {}): HTMLElement {
  drawn = mount(HostCard, { target: document.body, props: { placed: { entry, shown: [0], collapsed: false }, now: NOW, spot: null, href: '#/host/gpu01', onToggle } })
  flushSync()
  return document.body
}

function change(entry: HostEntry, changes: Parameters<HostEntry['change']>[0]): void {
  entry.change(changes)
  entry.touch()
  flushSync()
}

describe('the card of a host', () => {
  it('follows a host that goes down while it is shown', () => {
    const entry = new HostEntry(host('gpu01', [busyGpu('ann')]), NOW)
    const page = show(entry)
    expect(page.querySelector('.card.stale')).toBeNull()
    change(entry, { id: 'gpu01', status: 'down' })
    expect(page.querySelector('.card.stale')).not.toBeNull()
    expect(page.querySelector('.line')?.classList).toContain('past')
  })

  it('has figures of the machine from the first report on', () => {
    const entry = new HostEntry(host('gpu01', [gpu()], { status: 'never_seen', last_report_at: null }), NOW)
    const page = show(entry)
    expect(page.querySelector('footer')).toBeNull()
    change(entry, { id: 'gpu01', status: 'up', last_report_at: NOW })
    expect(page.querySelector('footer')?.textContent).toContain('cpu')
  })

  it('leads to the host by its name, and collapses by a control of its own', () => {
    const onToggle = vi.fn()
    const page = show(new HostEntry(host('gpu01', [gpu()]), NOW), onToggle)
    expect(page.querySelector('h2 a')?.textContent).toBe('gpu01')
    expect(page.querySelector('h2 a')?.getAttribute('href')).toBe('#/host/gpu01')
    page.querySelector<HTMLElement>('h2 a')?.click()
    expect(onToggle).not.toHaveBeenCalled()
    const control = page.querySelector<HTMLElement>('[aria-label="Collapse gpu01"]')
    expect(control?.getAttribute('aria-expanded')).toBe('true')
    control?.click()
    expect(onToggle).toHaveBeenCalledOnce()
  })

  it('names its columns, and says of the last one what it is', () => {
    const page = show(new HostEntry(host('gpu01', [busyGpu('ann')]), NOW))
    const heads = [...page.querySelectorAll('[role=columnheader]')]
    expect(heads.map(({ textContent }) => textContent)).toEqual(['State', 'GPU', 'User', 'Util', 'Memory', 'Temp', 'Power', 'For how long in this state'])
    const cells = page.querySelectorAll('[data-slot="0"] [role=gridcell]')
    expect(cells).toHaveLength(heads.length)
  })

  it('has two bars on the row of a GPU, each right behind its own figure', () => {
    const page = show(new HostEntry(host('gpu01', [busyGpu('ann', { utilization_percent: 50, memory_used_bytes: 20 * GIB })]), NOW))
    const parts = [...page.querySelectorAll('[data-slot="0"] > :is(.figure, .meter)')].slice(0, 4)
    expect(parts.map((part) => part.textContent?.trim() || part.querySelector<HTMLElement>('.used')?.style.transform)).toEqual(['50%', 'scaleX(0.5)', '20/80G', 'scaleX(0.25)'])
  })

  it('is red about faults only', () => {
    const problems = ['GPU 1 fell off the bus', 'the clock is 40s off']
    const gpus = [busyGpu('ann'), gpu({ label: '1', availability: 'unknown', health: 'critical' })]
    const entry = new HostEntry(host('gpu01', gpus, { problems }), NOW)
    const page = show(entry)
    const faults = (): boolean[] => [...page.querySelectorAll('.note')].map((note) => note.classList.contains('fault'))
    expect(faults()).toEqual([true, false])
    change(entry, { id: 'gpu01', status: 'down' })
    expect(faults()).toEqual([true, true, true])
  })

  it('counts the alerts that need attention, in the colour of the worst', () => {
    const entry = new HostEntry(host('gpu01', [gpu()]), NOW)
    const page = show(entry)
    expect(page.querySelector('.level')).toBeNull()
    entry.showAlerts([someAlert({ severity: 'warning', title: '/data of gpu01 is 96 % full' })])
    flushSync()
    expect(page.querySelector('.level')?.className).toMatch(/level warning/)
    expect(page.querySelector('.level')?.getAttribute('aria-label')).toBe('1 alert: /data of gpu01 is 96 % full')
    entry.showAlerts([someAlert({ severity: 'critical' }), someAlert({ id: 'a2', severity: 'warning' })])
    flushSync()
    expect(page.querySelector('.level')?.className).toMatch(/level critical/)
    expect(page.querySelector('.level')?.textContent?.trim()).toBe('2')
  })

  it('draws no bar for what is not known', () => {
    const page = show(new HostEntry(host('gpu01', [busyGpu('ann', { utilization_percent: null, memory_used_bytes: null })]), NOW))
    expect(page.querySelectorAll('[data-slot="0"] .bar.none')).toHaveLength(2)
  })

  it('leads from a row to whoever is on the GPU', () => {
    const page = show(new HostEntry(host('gpu01', [busyGpu('ann', { users: ['ann', 'b/ob'] })]), NOW))
    expect([...page.querySelectorAll('.who a')].map((link) => link.getAttribute('href'))).toEqual(['#/user/ann', '#/user/b%2Fob'])
  })
})
