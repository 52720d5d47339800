import { describe, expect, it } from 'vitest'
import { busyGpu, gpu, host } from '../testing/samples'
import { deviceVariable, useCommand, variableName } from './deviceVariable'

const mixed = host('gpu01', [gpu({ vendor: 'nvidia' }), gpu({ vendor: 'intel' }), gpu({ vendor: 'amd' }), gpu({ vendor: 'intel' })])
const at = (position: number, changes: object = {}) => ({ ...mixed.gpus[position]!, ...changes })

describe('the variable of a GPU', () => {
  it.each([
    [0, { uuid: 'GPU-6f0c-1' }, 'CUDA_VISIBLE_DEVICES=GPU-6f0c-1'],
    [0, { uuid: 'MIG-6f0c-1' }, 'CUDA_VISIBLE_DEVICES=MIG-6f0c-1'],
    [2, { uuid: 'GPU-00112233aabbccdd' }, 'ROCR_VISIBLE_DEVICES=GPU-00112233aabbccdd'],
    [2, {}, 'HIP_VISIBLE_DEVICES=0'],
    [1, {}, 'ZE_AFFINITY_MASK=0'],
    [3, {}, 'ZE_AFFINITY_MASK=1'],
  ])('%i %o is %s', (position, changes, variable) => {
    expect(deviceVariable(at(position, changes), mixed)).toBe(variable)
  })

  it('is none where no runtime could find the GPU', () => {
    expect(deviceVariable(at(0, { uuid: 'gpu01/0' }), mixed)).toBeNull()
    expect(deviceVariable(at(0, { vendor: 'other' }), mixed)).toBeNull()
    const missing = { availability: 'unknown', health: 'critical', utilization_percent: null, memory_used_bytes: null, temperature_celsius: null, power_watts: null }
    expect(deviceVariable(at(0, { uuid: 'GPU-1', ...missing }), mixed)).toBeNull()
  })

  it('has a name', () => expect(variableName('ZE_AFFINITY_MASK=1')).toBe('ZE_AFFINITY_MASK'))
})

describe('the command to use a GPU', () => {
  const free = at(0, { uuid: 'GPU-1' })

  it('opens a shell on its host', () => {
    expect(useCommand(free, mixed)).toBe("ssh -t gpu01 'CUDA_VISIBLE_DEVICES=GPU-1 exec $SHELL -l'")
  })

  it('is none for a GPU in use, a host that is down, and a name that a shell would read as more than a name', () => {
    expect(useCommand({ ...busyGpu('ann'), uuid: 'GPU-1' }, mixed)).toBeNull()
    expect(useCommand(free, { ...mixed, status: 'down' })).toBeNull()
    expect(useCommand(free, { ...mixed, name: 'a;b' })).toBeNull()
  })
})
