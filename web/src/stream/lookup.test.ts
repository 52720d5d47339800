import { expect, test } from 'vitest'
import { fleet, gpu, host } from '../testing/samples'
import { addressName, findGpu, findHost } from './lookup'
import { FleetModel } from './fleetModel'

function model(...hosts: Parameters<typeof fleet>[0]): FleetModel {
  const made = new FleetModel()
  made.load(fleet(hosts))
  return made
}

test('a GPU is found by its UUID, wherever it is now', () => {
  const made = model(host('a', [gpu(), gpu()]), host('b', [gpu()]))
  expect(findGpu(made, 'a-1')).toMatchObject({ entry: { id: 'a' }, position: 1 })
  expect(findGpu(made, 'gone')).toBeUndefined()
})

test('a GPU that moved to another host is found there', () => {
  const made = model(host('a', [gpu()]), host('b', []))
  const near = findGpu(made, 'a-0')
  const moved = { ...host('b', []), gpus: host('a', [gpu()]).gpus }
  made.load(fleet([host('a', []), moved]))
  expect(findGpu(made, 'a-0', near)).toMatchObject({ entry: { id: 'b' } })
})

test('of two hosts with one name the one that reports is meant', () => {
  const made = model(host('x', [], { id: '1', name: 'duplicate_host', status: 'down' }), host('y', [], { id: '2', name: 'duplicate_host' }))
  expect(findHost(made, 'duplicate_host')?.id).toBe('2')
  expect(findHost(made, '1')?.id).toBe('1')
  expect(findHost(made, 'nobody')).toBeUndefined()
})

test('an address names a host so that it is found again', () => {
  const made = model(host('x', [], { id: '1', name: 'duplicate_host' }), host('y', [], { id: '2', name: 'duplicate_host' }), host('z', [], { id: '3', name: 'alone' }))
  expect([...made.entries.values()].map((entry) => addressName(made, entry))).toEqual(['1', '2', 'alone'])
})
