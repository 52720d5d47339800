import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { GIB, NOW } from '../testing/samples'
import { emptyRequest, newDraft, type Draft } from './draft'
import ReservationForm from './ReservationForm.svelte'
import { reservation } from './samples'

let drawn: ReturnType<typeof mount> | undefined
let asked: { url: string; body: Record<string, unknown> }[] = []
let refusal: object | null = null
const who = { name: 'ada', mayReserve: true, mayAdminister: false, canLogIn: false }
const gpus = [0, 1, 2, 3].map((label) => ({ uuid: `gpu07-${label}`, host: 'gpu07', label: String(label), display_name: 'H100', memory_total_bytes: 80 * GIB, availability: label === 0 ? 'busy' : 'free', users: label === 0 ? ['bob'] : [], reservation: null }))

beforeEach(() => {
  vi.useFakeTimers({ now: NOW * 1000 })
  asked = []
  refusal = null
  vi.stubGlobal('fetch', async (url: string, { body }: { body: string }) => {
    asked.push({ url, body: JSON.parse(body) as Record<string, unknown> })
    if (refusal !== null) return new Response(JSON.stringify(refusal), { status: 409 })
    const preview = { start: NOW, end: NOW + 3600, gpus, reservations: [reservation({ id: 9, user: 'eve' })], is_cut: false, time: NOW }
    return new Response(JSON.stringify(url.endsWith('/preview') ? preview : reservation()), { status: 200 })
  })
})

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  drawn = undefined
  document.body.replaceChildren()
  vi.unstubAllGlobals()
  vi.useRealTimers()
})

const onDone = vi.fn()

async function show(draft: Partial<Draft> = {}): Promise<void> {
  const first = { ...newDraft([], null, null, NOW), request: { ...emptyRequest(), count: '4', sameHost: true }, ...draft }
  drawn = mount(ReservationForm, { target: document.body, props: { first, hosts: [], models: [], who, now: NOW, useOf: () => null, onDone, onLogIn: () => {} } })
  await wait()
}

async function wait(): Promise<void> {
  flushSync()
  await vi.advanceTimersByTimeAsync(400)
  flushSync()
}

async function type(label: string, value: string): Promise<void> {
  const field = [...document.querySelectorAll('label')].find(({ textContent }) => textContent === label)
  const input = document.getElementById(field?.getAttribute('for') ?? '') as HTMLInputElement
  input.value = value
  input.dispatchEvent(new Event('input', { bubbles: true }))
  await wait()
}

async function submit(): Promise<void> {
  document.querySelector('form')?.dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }))
  await wait()
}

describe('the form of a reservation', () => {
  it('shows which GPUs it would take, who is on them, and what else is reserved there', async () => {
    await show()
    const preview = document.querySelector('[aria-label=Preview]')
    expect(preview?.textContent).toContain('4 GPUs on gpu07')
    expect([...(preview?.querySelectorAll('.use') ?? [])].map(({ textContent }) => textContent)).toEqual(['in use now by bob', 'free now', 'free now', 'free now'])
    expect(preview?.textContent).toContain('eve reserved gpu01: 0')
    expect(asked).toEqual([{ url: 'api/v1/reservations/preview', body: { any: { gpus: 4, same_host: true }, for: 4 * 3600, note: '' } }])
  })

  it('reserves what it has shown', async () => {
    await show()
    await submit()
    expect(asked.at(-1)).toEqual({ url: 'api/v1/reservations', body: { gpus: ['gpu07-0', 'gpu07-1', 'gpu07-2', 'gpu07-3'], for: 4 * 3600, note: '' } })
    expect(onDone).toHaveBeenCalled()
  })

  it('reserves nothing that was not shown yet', async () => {
    await show()
    const button = document.querySelector<HTMLButtonElement>('button[type=submit]')!
    const field = document.querySelector<HTMLInputElement>('input[inputmode=numeric], input[type=text], input:not([type])')!
    field.value = '2'
    field.dispatchEvent(new Event('input', { bubbles: true }))
    flushSync()
    expect([button.disabled, document.querySelector('.summary')?.textContent]).toEqual([true, 'Checking what is free…'])
    document.querySelector('form')?.dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }))
    await wait()
    expect(asked.map(({ url }) => url)).toEqual(['api/v1/reservations/preview', 'api/v1/reservations/preview'])
    expect(button.disabled).toBe(false)
    expect(document.querySelector('.summary')?.textContent).toMatch(/^4 GPUs on gpu07, .* \(1h\) 1 of 4 is in use now\.$/)
  })

  it('can be sent where nobody can say what it would take', async () => {
    refusal = { error: { code: 'unavailable', message: 'later', hint: '' } }
    await show()
    expect(document.querySelector<HTMLButtonElement>('button[type=submit]')?.disabled).toBe(false)
  })

  it('asks once for what was typed in one go, and for nothing that is no request', async () => {
    await show()
    await type('Note', 'paper')
    expect(asked).toHaveLength(1)
    await type('Number of GPUs', '2')
    expect(asked.at(-1)?.body).toMatchObject({ any: { gpus: 2 } })
    await type('Number of GPUs', 'two')
    expect(asked).toHaveLength(2)
    expect(document.querySelector('[aria-label=Preview]')).toBeNull()
    expect(document.querySelector('.no-preview')?.textContent).toBe('No preview: Enter a number from 1 to 1024.')
  })

  it('names a mistake when it is sent, and no longer than it is one', async () => {
    const mistakes = (): (string | undefined)[] => [...document.querySelectorAll('.wrong')].map(({ textContent }) => textContent?.trim())
    await show()
    await type('Number of GPUs', '0')
    expect(mistakes()).toEqual([])
    await submit()
    expect(mistakes()).toEqual(['Enter a number from 1 to 1024.'])
    await type('Number of GPUs', '3')
    expect(mistakes()).toEqual([])
    await type('Number of GPUs', '')
    await submit()
    expect(mistakes()).toEqual(['Enter a number from 1 to 1024.'])
  })

  it('says why it could not be had, and when it could', async () => {
    refusal = { error: { code: 'conflict', message: '4 such GPUs on one host cannot be had', hint: '' }, conflicts: [], next_free: { start: NOW + 60, end: NOW + 3660, gpus: [{ uuid: 'x', host: 'gpu08', label: '1', is_there: true }] } }
    await show()
    expect(document.querySelector('.error[role=status]')?.textContent).toMatch(/4 such GPUs on one host cannot be had.*Next free slot: gpu08: 1/)
  })

  it('marks what has to be filled in', async () => {
    await show({ isNow: false })
    const marked = [...document.querySelectorAll('label.required')].map(({ textContent }) => textContent)
    expect(marked).toEqual(['Number of GPUs', 'Start', 'Duration', 'End'])
    expect(document.querySelectorAll('[aria-required=true]')).toHaveLength(4)
  })
})
