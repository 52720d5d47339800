import { describe, expect, it } from 'vitest'
import type { PreviewedGpu, ReservationPreview } from '../api/reservations'
import { GIB, NOW } from '../testing/samples'
import { previewText } from './preview'
import { gpusOf, reservation } from './samples'

function gpu(changes: Partial<PreviewedGpu> = {}): PreviewedGpu {
  return { uuid: 'GPU-1', host: 'gpu07', label: '0', display_name: 'H100', memory_total_bytes: 80 * GIB, availability: 'free', users: [], reservation: null, ...changes }
}

function preview(gpus: PreviewedGpu[], changes: Partial<ReservationPreview> = {}): ReservationPreview {
  return { start: NOW + 86_400, end: NOW + 90_000, gpus, reservations: [], is_cut: false, time: NOW, ...changes }
}

describe('the preview of a reservation', () => {
  it('names GPUs, model, memory and host', () => {
    const text = previewText(preview([gpu(), gpu({ uuid: 'GPU-2', label: '1', memory_total_bytes: null })]), NOW)
    expect(text.title).toBe('2 GPUs on gpu07')
    expect(text.rows.map(({ name, model }) => [name, model])).toEqual([
      ['gpu07: 0', 'H100 · 80 GiB'],
      ['gpu07: 1', 'H100 · memory unknown'],
    ])
    expect(text.warning).toBeNull()
    expect(text.besideNote).toBe('Nothing else is reserved on gpu07 in this time.')
  })

  it.each<[Partial<PreviewedGpu>, string]>([
    [{}, 'free now'],
    [{ availability: 'busy', users: ['ann', 'bob'] }, 'in use now by ann, bob'],
    [{ availability: 'idle', users: ['ann'] }, 'in use now by ann, idle'],
    [{ availability: 'busy', users: null }, 'in use now, user unknown'],
    [{ availability: 'unknown', users: null }, 'state unknown'],
    [{ availability: 'reserved', reservation: { id: 1, user: 'eve', until: NOW + 60, note: '', scheduler: null, kind: 'claim' } }, 'now claimed by eve until'],
    [{ availability: 'busy', users: ['ann'], reservation: { id: 1, user: 'eve', until: NOW + 60, note: '', scheduler: null, kind: 'reservation' } }, 'in use now by ann; reserved by eve until'],
  ])('says who is on a GPU now: %o', (changes, words) => {
    expect(previewText(preview([gpu(changes)]), NOW).rows[0]?.use).toContain(words)
  })

  it('warns of GPUs in use, and of nothing else', () => {
    const warningOf = (...states: PreviewedGpu['availability'][]): string | null => previewText(preview(states.map((availability, at) => gpu({ uuid: String(at), availability }))), NOW).warning
    expect(warningOf('free', 'reserved')).toBeNull()
    expect(warningOf('free', 'busy', 'idle')).toMatch(/^2 of 3 are in use now/)
    expect(warningOf('busy')).toMatch(/^It is in use now/)
  })

  it('calls MIG slices by their name', () => {
    expect(previewText(preview([gpu({ label: '0.1' }), gpu({ label: '0.2', host: 'gpu08' })]), NOW).title).toBe('2 MIG slices on 2 hosts')
  })

  it('lists what else is reserved there', () => {
    const text = previewText(preview([gpu()], { reservations: [reservation({ id: 4, gpus: gpusOf('gpu07', 4, 5), note: 'night' })], is_cut: true }), NOW)
    expect(text.beside[0]?.text).toMatch(/^ada reserved gpu07: 4, 5, .* \(night\)$/)
    expect(text.besideNote).toBe('and more')
  })
})
