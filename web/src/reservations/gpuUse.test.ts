import { describe, expect, it } from 'vitest'
import { busyGpu, gpu, host, NOW } from '../testing/samples'
import { gpuUse, hostUse } from './gpuUse'

const up = host('gpu01', [])

describe('the use of a GPU', () => {
  it('is nothing where it is free or reserved', () => {
    expect(gpuUse(gpu(), up, NOW)).toBeNull()
    expect(gpuUse(gpu({ availability: 'reserved' }), up, NOW)).toBeNull()
  })
  it('names who is on it and since when', () => {
    expect(gpuUse(busyGpu('ann', { since: NOW - 60 }), up, NOW)).toMatchObject({ state: 'busy', who: 'ann', part: 1 })
    expect(gpuUse(gpu({ availability: 'idle' }), up, NOW)).toMatchObject({ state: 'idle', who: 'user unknown' })
  })
  it('is unknown, and not nothing, where the host does not report', () => {
    expect(gpuUse(gpu(), host('gpu01', [], { status: 'down' }), NOW)).toMatchObject({ state: 'unknown', who: 'not reporting', part: 1 })
  })
})

describe('the use of a host', () => {
  const [busy, idle, unknown] = [gpuUse(busyGpu('ann', { since: NOW - 60 }), up, NOW), gpuUse(gpu({ availability: 'idle', since: NOW - 90 }), up, NOW), gpuUse(gpu({ availability: 'unknown' }), up, NOW)]
  it('counts', () => {
    expect(hostUse([busy, idle, null, null])).toMatchObject({ state: 'busy', who: '2/4', label: '4 GPUs, 2 in use now', part: 0.5 })
    expect(hostUse([idle, unknown])).toMatchObject({ state: 'busy', who: '1/2', label: '2 GPUs, 1 in use, 1 unknown now', part: 1 })
    expect(hostUse([unknown, unknown])).toMatchObject({ state: 'unknown', who: 'unknown', label: '2 GPUs, 2 unknown now', part: 1 })
    expect(hostUse([null])).toBeNull()
  })
})
