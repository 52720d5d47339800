/** Reservations for the unit tests: ordinary ones, with what a test is about put on top. */
import type { Reservation } from '../api/reservations'
import { NOW } from '../testing/samples'

export function reservation(changes: Partial<Reservation> = {}): Reservation {
  return {
    id: 1,
    kind: 'reservation',
    user: 'ada',
    gpus: [{ uuid: 'gpu01-0', host: 'gpu01', label: '0', is_there: true }],
    start: NOW + 3600,
    end: NOW + 5 * 3600,
    note: '',
    scheduler: null,
    name: null,
    is_read_only: false,
    version: 1,
    created_at: NOW,
    created_by: 'ada',
    changed_at: NOW,
    used_at: null,
    released_at: null,
    release_reason: null,
    state: 'planned',
    ...changes,
  }
}

/** GPUs of a host by their numbers, as `host` in samples.ts numbers them. */
export function gpusOf(host: string, ...labels: number[]): Reservation['gpus'] {
  return labels.map((label) => ({ uuid: `${host}-${label}`, host, label: String(label), is_there: true }))
}
