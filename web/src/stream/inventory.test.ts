import { expect, it } from 'vitest'
import { GIB, gpu } from '../testing/samples'
import { inventory } from './inventory'

const h200 = (changes = {}) => gpu({ name: 'NVIDIA H200', display_name: 'H200', memory_total_bytes: 141 * GIB, ...changes })

it('counts equal GPUs together, by the names that the hub shows', () => {
  const v100 = gpu({ name: 'Tesla V100', display_name: 'V100', memory_total_bytes: 32 * GIB })
  expect(inventory([h200(), v100, h200()])).toBe('2× H200 141G + 1× V100 32G')
})

it('takes a name that the operator chose', () => {
  expect(inventory([h200({ display_name: 'the big one' })])).toBe('1× the big one 141G')
})

it('counts a GPU that cannot be read with its sisters', () => {
  expect(inventory([h200(), h200({ memory_total_bytes: null })])).toBe('2× H200 141G')
})

it.each(['A100-SXM4-80GB', 'A100-SXM4-80GB MIG 1g.10gb', 'H100 80GB HBM3', 'A100 80G'])('leaves the size to %s, which names it', (name) => {
  expect(inventory([gpu({ display_name: name })])).toBe(`1× ${name}`)
})

it('says nothing of a size that nobody knows', () => {
  expect(inventory([h200({ memory_total_bytes: null })])).toBe('1× H200')
})
