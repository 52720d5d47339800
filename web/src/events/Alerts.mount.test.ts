import { flushSync, mount, tick, unmount } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Alert, Mute } from '../api/alerts'
import { NOW, someAlert } from '../testing/samples'
import { toasts } from '../ui/toasts.svelte'
import Alerts from './Alerts.svelte'
import Mutes from './Mutes.svelte'

let drawn: ReturnType<typeof mount> | undefined
let asked: { method: string; url: string; body: unknown }[] = []
let answers: object[] = []

beforeEach(() => {
  asked = []
  answers = []
  vi.stubGlobal('fetch', async (url: string, { method, body }: { method: string; body?: string }) => {
    asked.push({ method, url, body: body === undefined ? null : JSON.parse(body) })
    return new Response(JSON.stringify(answers.shift() ?? {}), { status: 200 })
  })
})

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  drawn = undefined
  document.body.replaceChildren()
  for (const { id } of toasts.shown) toasts.dismiss(id)
  vi.unstubAllGlobals()
})

const many = (count: number, changes: Partial<Alert> = {}): Alert[] => Array.from({ length: count }, (_, at) => someAlert({ id: `a${at}`, host: `gpu${at}`, title: `gpu${at} has stopped reporting`, ...changes }))

function show(alerts: Alert[], changes = {}): HTMLElement {
  const counts = { total: alerts.length, needs_attention: alerts.length, critical: alerts.length }
  drawn = mount(Alerts, { target: document.body, props: { alerts, counts, now: NOW, mayAcknowledge: true, mayMute: true, onChange: () => {}, ...changes } })
  flushSync()
  return document.body
}

function button(name: string): HTMLButtonElement | undefined {
  return [...document.querySelectorAll('button')].find((each) => (each.getAttribute('aria-label') ?? each.textContent ?? '').startsWith(name))
}

async function settle(): Promise<void> {
  for (let at = 0; at < 5; at++) await tick()
  await new Promise((done) => setTimeout(done, 0))
  flushSync()
}

async function press(name: string): Promise<void> {
  button(name)?.click()
  await settle()
}

describe('alerts', () => {
  it('of one cause are one line, and open to their hosts', async () => {
    const page = show([...many(40), someAlert({ id: 'x', rule: 'disk_full', host: 'gpu1', title: 'disk' })])
    expect(page.querySelector('h2')?.textContent).toContain('41 alerts need attention')
    expect(page.querySelectorAll('section > ul > li')).toHaveLength(2)
    expect(page.textContent).toContain('40 alerts on 40 hosts')
    button('▸critical: Host down')?.click()
    flushSync()
    expect(page.querySelectorAll('.hosts > li')).toHaveLength(20)
    await press('Show all 40 hosts')
    expect(page.querySelectorAll('.hosts > li')).toHaveLength(40)
  })

  it('are acknowledged by the hundred in one request, and what failed is named', async () => {
    const alerts = many(300)
    answers = [{ acknowledged: alerts.slice(1), failed: [{ id: 'a0', code: 'unknown_alert', message: 'no alert with the id a0 fires.' }] }]
    const page = show(alerts)
    await press('Acknowledge 300: Host down')
    expect(asked).toEqual([{ method: 'POST', url: 'api/v1/alerts/acknowledge', body: { ids: alerts.map(({ id }) => id) } }])
    expect(page.querySelector('[role=alert] li')?.textContent).toBe('gpu0 has stopped reporting: no alert with the id a0 fires.')
    expect(toasts.shown.map(({ text }) => text)).toEqual(['299 alerts acknowledged'])
    expect(toasts.undoLast()).toBe(true)
    await settle()
    expect(asked[1]).toEqual({ method: 'POST', url: 'api/v1/alerts/unacknowledge', body: { ids: alerts.slice(1).map(({ id }) => id) } })
  })

  it('are muted by the hundred in one request, which can be undone', async () => {
    const alerts = many(300)
    answers = [{ id: 'm1', hosts: alerts.map(({ host }) => host) }, {}]
    const page = show(alerts)
    await press('Mute… Host down')
    const reason = page.querySelector<HTMLInputElement>('input[required]')
    expect(page.querySelector(`label[for="${reason?.id}"]`)?.classList).toContain('required')
    expect(button('Mute')?.textContent).not.toBe('Mute')
    const submit = [...page.querySelectorAll('form button')].find(({ textContent }) => textContent === 'Mute') as HTMLButtonElement
    expect(submit.disabled).toBe(true)
    reason!.value = 'new switch'
    reason!.dispatchEvent(new Event('input', { bubbles: true }))
    flushSync()
    page.querySelector('form')?.dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }))
    await settle()
    expect(asked).toEqual([{ method: 'POST', url: 'api/v1/mutes', body: { rule: 'host_down', hosts: alerts.map(({ host }) => host), for: '4h', reason: 'new switch' } }])
    toasts.undoLast()
    await settle()
    expect(asked[1]).toEqual({ method: 'DELETE', url: 'api/v1/mutes/m1', body: null })
  })

  it('offer nothing to who may do nothing', () => {
    show(many(3), { mayAcknowledge: false, mayMute: false })
    expect([...document.querySelectorAll('button')].map(({ textContent }) => textContent)).toEqual([expect.stringContaining('Host down')])
  })

  it('that are cut say of how many they are', () => {
    const page = show(many(3), { counts: { total: 3210, needs_attention: 3000, critical: 5 } })
    expect(page.textContent).toContain('3,000 alerts need attention')
    expect(page.textContent).toContain('The 3 most severe of 3,210 are listed.')
  })
})

describe('mutes', () => {
  const mute: Mute = { id: 'm1', start: NOW - 60, end: NOW + 3600, created_at: NOW, created_by: 'ada', reason: 'new fans', rule: 'gpu_hot', host: null, labels: {}, hosts: ['gpu01'] }

  it('are listed with who, why and until when, and end by a button that can be undone', async () => {
    const onChange = vi.fn()
    answers = [mute, mute]
    drawn = mount(Mutes, { target: document.body, props: { mutes: [mute], now: NOW, mayMute: true, onChange } })
    flushSync()
    expect(document.querySelector('li')?.textContent).toMatch(/GPU hot on gpu01.*until .*by ada: new fans/)
    await press('Unmute GPU hot on gpu01')
    expect(asked[0]).toMatchObject({ method: 'DELETE', url: 'api/v1/mutes/m1' })
    toasts.undoLast()
    await settle()
    expect(asked[1]).toEqual({ method: 'POST', url: 'api/v1/mutes', body: { rule: 'gpu_hot', hosts: ['gpu01'], labels: {}, start: NOW - 60, end: NOW + 3600, reason: 'new fans' } })
    expect(onChange).toHaveBeenCalledTimes(2)
  })

  it('are not ended by who may not', () => {
    drawn = mount(Mutes, { target: document.body, props: { mutes: [mute], now: NOW, mayMute: false, onChange: () => {} } })
    flushSync()
    expect(document.querySelector('button')).toBeNull()
  })
})
