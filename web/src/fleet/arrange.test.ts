import { describe, expect, it } from 'vitest'
import type { HostEntry } from '../stream/fleetModel'
import { isSameArrangement, MANY_HOSTS, sortLabel, type Sort } from './arrange'
import { arrange, busyGpu, entry, gpu, host } from '../testing/samples'
import { HostEntry as Entry } from '../stream/fleetModel'
import { parseQuery } from './query'

const noOverrides = new Map<string, boolean>()

function order(entries: HostEntry[], sort: Sort, text = ''): string[] {
  entries.forEach((each, i) => (each.rank = i))
  return arrange(entries, parseQuery(text), sort, noOverrides).map((placed) => placed.entry.id)
}

describe('order', () => {
  it('puts more free GPUs first, then what may become free soonest, and silent hosts last', () => {
    const hosts = [
      entry('down', ['unknown'], { status: 'down' }),
      entry('busy', ['busy', 'busy']),
      entry('idle', ['idle', 'busy']),
      entry('one', ['free', 'busy']),
      entry('reserved', ['reserved', 'busy']),
      entry('two', ['free', 'free']),
    ]
    expect(order(hosts, 'free')).toEqual(['two', 'one', 'reserved', 'idle', 'busy', 'down'])
  })

  it('puts the longest idle first where only idle GPUs are asked for', () => {
    const at = (name: string, since: number | null) => new Entry(host(name, [gpu(), gpu({ availability: 'idle', since })]))
    expect(order([at('short', 300), at('long', 100), at('unknown', null), at('middle', 200)], 'free', 'idle')).toEqual(['long', 'middle', 'short', 'unknown'])
    expect([sortLabel('free', parseQuery('idle')), sortLabel('free', parseQuery('idle free')), sortLabel('name', parseQuery('idle'))]).toEqual(['longest idle', 'free first', 'name'])
  })

  it('falls back to the name', () => {
    expect(order([entry('a'), entry('b')], 'free')).toEqual(['a', 'b'])
  })

  it('puts the busiest first and the unknown last', () => {
    const at = (name: string, utilization_percent: number | null) => new Entry(host(name, [gpu({ utilization_percent })]))
    expect(order([at('none', null), at('low', 10), at('high', 90), at('zero', 0)], 'utilization')).toEqual(['high', 'low', 'zero', 'none'])
  })

  it('puts the hottest first', () => {
    const at = (name: string, temperature_celsius: number) => new Entry(host(name, [gpu(), gpu({ temperature_celsius })]))
    expect(order([at('cool', 40), at('hot', 90)], 'temperature')).toEqual(['hot', 'cool'])
  })

  it('puts equal models together whatever their number', () => {
    const of = (name: string, model: string, n: number) => new Entry(host(name, Array.from({ length: n }, () => busyGpu('ann', { display_name: model }))))
    expect(order([of('a', 'NVIDIA H200', 8), of('b', 'NVIDIA A100', 4), of('c', 'NVIDIA H200', 4)], 'model')).toEqual(['b', 'a', 'c'])
  })

  it('puts silent hosts, unwell GPUs and problems first', () => {
    const hosts = [
      entry('fine'),
      entry('problem', ['free'], { problems: ['driver slow'] }),
      new Entry(host('hot', [gpu({ health: 'warning' })])),
      entry('late', ['unknown'], { status: 'late' }),
      entry('down', ['unknown'], { status: 'down' }),
    ]
    expect(order(hosts, 'problems')).toEqual(['down', 'late', 'hot', 'problem', 'fine'])
  })
})

describe('choice', () => {
  it('shows only the GPUs that fit, and only hosts that have one', () => {
    const board = arrange([entry('a', ['busy', 'free', 'free']), entry('b', ['busy'])], parseQuery('free'), 'free', noOverrides)
    expect(board.map((placed) => [placed.entry.id, placed.shown])).toEqual([['a', [1, 2]]])
  })

  it('keeps a host whose GPUs cannot be read', () => {
    expect(order([entry('blind', [])], 'free')).toEqual(['blind'])
    expect(order([entry('blind', [])], 'free', 'free')).toEqual([])
  })
})

describe('folding', () => {
  const full = Array.from({ length: MANY_HOSTS }, (_, i) => entry(`full${i}`, ['busy']))
  const collapsed = (entries: HostEntry[], text = '', overrides = noOverrides) =>
    arrange(entries, parseQuery(text), 'name', overrides).filter((placed) => placed.collapsed).map((placed) => placed.entry.id)

  it('overrides hosts with nothing free when there are many', () => {
    expect(collapsed([...full, entry('some', ['free', 'busy'])])).toHaveLength(MANY_HOSTS)
  })

  it('overrides nothing when there are few', () => {
    expect(collapsed(full.slice(1))).toEqual([])
  })

  it('overrides no answer of a search', () => {
    expect(collapsed(full, 'busy')).toEqual([])
  })

  it('overrides no host that has a problem', () => {
    expect(collapsed([...full, entry('ill', ['busy'], { problems: ['disk full'] })])).not.toContain('ill')
  })

  it('overrides no host with a GPU that is not well', () => {
    const hot = entry('hot', ['busy'])
    hot.change({ id: 'hot', gpus: [{ uuid: hot.host.gpus[0]!.uuid, health: 'warning' }] })
    expect(collapsed([...full, hot])).not.toContain('hot')
  })

  it('lets a person decide otherwise', () => {
    expect(collapsed(full, '', new Map([['full0', false]]))).not.toContain('full0')
    expect(collapsed([entry('free')], '', new Map([['free', true]]))).toEqual(['free'])
  })
})

describe('two boards', () => {
  const a = entry('a', ['free', 'busy'])
  const board = (text: string) => arrange([a], parseQuery(text), 'name', noOverrides)

  it('are the same when every line stands where it stood', () => {
    expect(isSameArrangement(board(''), board(''))).toBe(true)
  })

  it('differ when a line came or went', () => {
    expect(isSameArrangement(board(''), board('free'))).toBe(false)
    expect(isSameArrangement(board('free'), board('busy'))).toBe(false)
    expect(isSameArrangement(board(''), [])).toBe(false)
  })
})

describe('a host that was never seen', () => {
  const seen = ['up', 'late', 'down', 'never_seen'].map((status) => entry(status, status === 'never_seen' ? [] : ['unknown'], { status: status as never }))

  it('comes last where something free is looked for', () => {
    expect(order([...seen].reverse(), 'free')).toEqual(['up', 'late', 'down', 'never_seen'])
  })

  it('is among the problems', () => {
    expect(order(seen, 'problems')).toEqual(['down', 'never_seen', 'late', 'up'])
  })

  it('is found by that word', () => {
    expect(order(seen, 'free', 'never_seen')).toEqual(['never_seen'])
  })
})
