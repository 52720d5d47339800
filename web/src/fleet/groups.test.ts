import { describe, expect, it, test } from 'vitest'
import { arrange, busyGpu, gpu, host } from '../testing/samples'
import { HostEntry } from '../stream/fleetModel'
import { groupsOn, groupText, labelsOf, readGrouping, type Grouping } from './groups'
import { parseQuery } from './query'

const A100 = { display_name: 'A100' }
const H200 = { display_name: 'H200' }
const entries = [
  host('a', [gpu(A100), busyGpu('ann', A100), busyGpu('bob', H200)], { labels: { rack: 'r2' } }),
  host('b', [busyGpu('ann', H200), gpu({ ...H200, availability: 'unknown' })], { labels: { rack: 'r10' } }),
  host('c', [gpu({ ...H200, users: ['ann', 'bob'], availability: 'idle' })], { labels: { room: '1' } }),
  host('d', [], { status: 'never_seen' }),
].map((each, rank) => Object.assign(new HostEntry(each), { rank }))

const grouped = (grouping: Grouping, query = '') => arrange(entries, parseQuery(query), 'name', new Map(), grouping)
const shown = (grouping: Grouping, query = '') => grouped(grouping, query).map(({ group, entry, shown }) => `${group} ${entry.id}${shown.join('')}`)

describe('groups', () => {
  it('are none by host', () => {
    expect(shown('host')).toEqual(['undefined a012', 'undefined b01', 'undefined c0', 'undefined d'])
  })

  it('split a host by the models of its GPUs, most free first', () => {
    expect(shown('model')).toEqual(['=A100 a01', '=H200 a2', '=H200 b01', '=H200 c0', '~no GPUs d'])
  })

  it('put what is free before the people, who are ordered by how much they have', () => {
    expect(shown('user')).toEqual(['~free a0', '=ann a1', '=ann b0', '=ann c0', '=bob a2', '=bob c0', '~no GPUs d', '~unknown b1'])
  })

  it('keep hosts whole by label, ordered as people count', () => {
    expect(shown('label:rack')).toEqual(['=r2 a012', '=r10 b01', '~no label c0', '~no label d'])
  })

  it('keep hosts whole by room and rack', () => {
    expect(shown('place')).toEqual(['=1 › no rack c0', '=no room › r2 a012', '=no room › r10 b01', '~no room or rack d'])
  })

  it('hold what was searched for', () => {
    expect(shown('user', 'bob')).toEqual(['=bob a2', '=bob c0', '=ann c0'])
  })
})

it('tells a person called free from a free GPU', () => {
  const board = arrange([new HostEntry(host('x', [busyGpu('free'), gpu()]))], parseQuery(''), 'name', new Map(), 'user')
  expect(board.map(({ group }) => group)).toEqual(['~free', '=free'])
})

it('says what there is in a group', () => {
  expect(groupText(groupsOn(grouped('model')).get('=H200') ?? [])).toEqual({
    title: 'H200',
    hosts: 3,
    gpus: 4,
    slices: 0,
    states: [{ state: 'busy', count: 2 }, { state: 'idle', count: 1 }, { state: 'unknown', count: 1 }],
  })
})

it('finds the labels that hosts have', () => {
  expect(labelsOf(entries)).toEqual(['rack', 'room'])
})

test.each([['model', 'model'], ['place', 'place'], ['label:rack', 'label:rack'], ['label:', 'host'], ['x', 'host'], [null, 'host']])('%s is read as %s', (text, grouping) =>
  expect(readGrouping(text)).toBe(grouping),
)
