import { expect, it } from 'vitest'
import { GIB, gpu } from '../samples'
import { inventory, shortModel } from './models'

it.each([
  ['NVIDIA A100-SXM4-80GB', 'A100'],
  ['NVIDIA H100 80GB HBM3', 'H100'],
  ['NVIDIA H200', 'H200'],
  ['NVIDIA GeForce RTX 4090', 'RTX 4090'],
  ['NVIDIA RTX 6000 Ada Generation', 'RTX 6000 Ada'],
  ['Tesla V100-PCIE-16GB', 'V100'],
  ['NVIDIA A100-SXM4-40GB MIG 3g.20gb', 'A100 MIG 3g.20gb'],
  ['AMD Instinct MI300X', 'MI300X'],
  ['NVIDIA', 'NVIDIA'],
])('%s is called %s', (name, short) => {
  expect(shortModel(name)).toBe(short)
})

it('counts equal GPUs together', () => {
  const v100 = gpu({ name: 'Tesla V100-SXM2-32GB', memory_total_bytes: 32 * GIB })
  expect(inventory([gpu(), v100, gpu()])).toBe('2× A100 80G + 1× V100 32G')
})

it('counts a GPU that cannot be read with its sisters', () => {
  expect(inventory([gpu(), gpu({ memory_total_bytes: null })])).toBe('2× A100 80G')
})

it('leaves the size to a profile that names it', () => {
  expect(inventory([gpu({ name: 'NVIDIA A100-SXM4-80GB MIG 1g.10gb', memory_total_bytes: 9.5 * GIB })])).toBe('1× A100 MIG 1g.10gb')
})

it('says nothing of a size that nobody knows', () => {
  expect(inventory([gpu({ memory_total_bytes: null })])).toBe('1× A100')
})
