import { expect, test } from 'vitest'
import type { GpuRequest, QueuePosition } from '../api/queue'
import { queueRows, wantedText } from './queueText'

const NOW = 1_790_000_000

function request(changes: Partial<QueuePosition> = {}): QueuePosition {
  const own = { id: 1, user: 'ann', wanted: { gpus: 2 }, created_at: NOW - 3700, position: 1, waiting: 2, reason: 'no GPU is free', impossible: null }
  return { ...own, claimed: 0, estimate_seconds: null, estimate_reason: null, granted: null, version: '', ...changes } as QueuePosition
}

const ANY: GpuRequest = { gpus: 1, memory_bytes: null, model: null, host: null, near: null, same_host: false, mig: false, allow_mig: false }

test('what is wanted is said in words', () => {
  expect(wantedText({ ...ANY, gpus: 2, memory_bytes: 40 * 2 ** 30, model: 'H100', same_host: true })).toBe('2 GPUs called H100 with 40 GiB on one host')
  expect(wantedText({ ...ANY, same_host: true, host: 'gpu07', mig: true })).toBe('1 MIG slice on gpu07')
})

test('rows say who waits for how long, and what is in the way', () => {
  const granted = { gpus: [{ host: 'gpu07', label: '3' }] } as never
  const rows = queueRows([request({ id: 2, user: 'bob', position: null, granted }), request()], NOW)
  expect(rows.map(({ position, user, since, note }) => [position, user, since, note])).toEqual([
    ['starting', 'bob', '1h 1m', 'granted: gpu07:3'],
    ['1', 'ann', '1h 1m', 'no GPU is free'],
  ])
  expect(queueRows([request(), request({ user: 'bob' })], NOW, ['bob']).length).toBe(1)
})
