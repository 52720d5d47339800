import { describe, expect, test } from 'vitest'
import { compareHref, findStraggler, meanOf, readCompared } from './compare'

const read = (text: string) => readCompared(new URLSearchParams(text))

describe('the address', () => {
  test('names what is compared, each once and no more than eight', () => {
    expect(read('kind=host&of=a,b,a&metric=power_watts')).toEqual({ kind: 'host', names: ['a', 'b'], metric: 'power_watts' })
    expect(read(`of=${Array.from({ length: 12 }, (_, at) => `GPU-${at}`).join()}`).names).toHaveLength(8)
  })

  test('that makes no sense is an empty comparison of GPUs', () => {
    expect(read('kind=planet&metric=colour')).toEqual({ kind: 'gpu', names: [], metric: 'utilization_percent' })
    expect(read('kind=run&of=7,x,-1').names).toEqual(['7'])
    expect(read('kind=user&of=alice&metric=clock_sm_mhz').metric).toBe('gpus_used')
  })

  test('comes back with any name', () => {
    const names = ['a,b', '50%', 'ü &?#', '%2C']
    const href = compareHref({ kind: 'user', names, metric: 'power_watts' }, { range: '7d' })
    expect(read(href.split('?')[1]!)).toEqual({ kind: 'user', names, metric: 'power_watts' })
    expect(href).toContain('range=7d')
  })
})

describe('the straggler', () => {
  test('is the one far from the median of the others', () => {
    expect(findStraggler([93, 92, 71, 94])).toEqual({ at: 2, median: 93 })
    expect(findStraggler([60, 61, 84])).toEqual({ at: 2, median: 60.5 })
  })

  test('is none where they differ alike, hardly, or are too few', () => {
    expect(findStraggler([10, 40, 70, 100])).toBeNull()
    expect(findStraggler([100, 100, 101, 95])).toBeNull()
    expect(findStraggler([10, 90])).toBeNull()
    expect(findStraggler([10, 90, null])).toBeNull()
    expect(findStraggler([0, 0, 0])).toBeNull()
  })
})

test('a mean is of what is known', () => {
  const past = (...means: (number | null)[]) => ({ series: [{ points: means.map((mean, at) => [at, mean, null, null]) }] }) as never
  expect(meanOf(past(10, null, 20))).toBe(15)
  expect(meanOf(past(null))).toBeNull()
  expect(meanOf(null)).toBeNull()
})
