import { expect, test } from 'vitest'
import type { HubEvent } from '../api/events'
import { NOW } from '../testing/samples'
import { eventLine } from './eventList.svelte'

const event: HubEvent = { id: '1', at: NOW - 60, kind: 'xid', severity: 'critical', host: 'gpu01', host_id: 'h', gpu: 'GPU-1', label: '0', user: null, title: 'XID 79', detail: 'it has fallen off the bus' }

test('an event is told with its time for everybody on hover', () => {
  expect(eventLine(event, NOW)).toMatchObject({ severity: 'critical', title: 'XID 79', detail: 'it has fallen off the bus', time: { title: '2027-01-15 07:59:00 UTC' } })
})

test('an event with a hostile title turns nothing around', () => {
  expect(eventLine({ ...event, title: 'a\u202eb' }, NOW).title).toBe('a\ufffdb')
})
