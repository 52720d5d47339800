import { expect, it } from 'vitest'
import catalog from '../api/catalog.json'
import { gpu, host, NOW } from '../testing/samples'
import { expandHost, NOT_LOADED } from './overview'

const SHORT = {
  ...{ id: 'a', name: 'a', display_name: 'A', status: 'up', via: 'push', labels: { rack: '1' }, problems: [], last_report_at: NOW },
  model: { name: 'NVIDIA H200', display_name: 'H200', vendor: 'nvidia', memory_total_bytes: 8 },
  gpus: [
    { uuid: 'GPU-0', index: 0, label: '0', availability: 'busy', since: NOW, users: ['ann'], health: 'warning', health_reason: 'hot' },
    { uuid: 'GPU-1', index: 1, label: '1', availability: 'free', since: NOW, display_name: 'L4', memory_total_bytes: null },
  ],
} as const

it('has every field that a host and its GPUs have', () => {
  const expanded = expandHost(structuredClone(SHORT) as never)
  for (const field of Object.keys(host('a', []))) expect(expanded).toHaveProperty(field)
  for (const field of [...Object.keys(gpu()), 'reservation_conflict']) for (const each of expanded.gpus) expect(each).toHaveProperty(field)
})

it('takes from the model what a GPU does not say itself', () => {
  const [first, second] = expandHost(structuredClone(SHORT) as never).gpus
  expect(first).toMatchObject({ display_name: 'H200', memory_total_bytes: 8, users: ['ann'], health: 'warning', availability: 'busy' })
  expect(second).toMatchObject({ display_name: 'L4', memory_total_bytes: null, users: [], health: 'ok', name: 'NVIDIA H200' })
})

it('knows no figure, and says why', () => {
  const expanded = expandHost(structuredClone(SHORT) as never)
  for (const { name, scope } of catalog) {
    const owner = (scope === 'gpu' ? expanded.gpus[1] : expanded) as unknown as Record<string, unknown>
    expect(owner[name]).toBeNull()
    expect((owner['reasons'] as Record<string, string>)[name]).toBe(NOT_LOADED)
  }
  expect(expanded.gpus[0]?.processes).toBeNull()
})
