import { expect, test } from 'vitest'
import { HostEntry } from '../stream/fleetModel'
import { gpu, host } from '../testing/samples'
import { fleetRows } from './fleetSheet'

test('each GPU that is shown has one row, and what is unknown is empty', () => {
  const entry = new HostEntry(host('a', [gpu({ users: ['ann', 'bob'] }), gpu({ utilization_percent: null, availability: 'unknown' }), gpu()]))
  const rows = fleetRows([{ entry, shown: [0, 1], collapsed: false, group: 'x' }, { entry, shown: [0], collapsed: true, group: 'y' }])
  const at = (name: string): unknown[] => rows.map((row) => row[rows[0]?.indexOf(name) ?? -1])
  expect(at('uuid')).toEqual(['uuid', 'a-0', 'a-1'])
  expect(at('users')).toEqual(['users', 'ann bob', ''])
  expect(at('utilization_percent')).toEqual(['utilization_percent', 0, null])
  expect(at('availability')).toEqual(['availability', 'free', 'unknown'])
})
