import { expect, test } from 'vitest'
import { FleetModel } from '../stream/fleetModel'
import { fleet, gpu, host } from '../testing/samples'
import { findEntries, usersOf, type PaletteEntry } from './palette'

function model(...hosts: Parameters<typeof fleet>[0]): FleetModel {
  const made = new FleetModel()
  made.load(fleet(hosts))
  return made
}

const LAB = model(
  host('gpu05', [gpu({ users: ['alice'] }), gpu({ index: 1, label: '1', users: ['bob'] })]),
  host('gpu06', [gpu()]),
  host('<b>&=1+1', [gpu()]),
)
const FIXED: PaletteEntry[] = [
  { key: 'fleet', kind: 'page', label: 'Fleet', hint: 'page', target: '#/' },
  { key: 'theme', kind: 'action', label: 'Change the theme', hint: 'light dark', target: () => {} },
]
const labels = (text: string, lab = LAB): string[] => findEntries(text, FIXED, lab, usersOf(lab)).map(({ label }) => label)

test('without a text the pages and actions are listed in their order', () => {
  expect(labels('  ')).toEqual(['Fleet', 'Change the theme'])
})

test('a host is found by a part of its name, with its GPUs where it alone fits', () => {
  expect(labels('gpu0')).toEqual(['gpu05', 'gpu06'])
  expect(labels('gpu05')).toEqual(['gpu05', 'gpu05:0', 'gpu05:1'])
})

test('a GPU is found by host and number, and by its UUID', () => {
  expect(labels('gpu05:1')).toEqual(['gpu05:1'])
  expect(labels('gpu05 1')).toEqual(['gpu05:1'])
  const uuid = 'GPU-deadbeef-0000'
  const lab = model({ ...host('a', []), gpus: [gpu({ uuid })] })
  expect(labels('deadbee', lab)).toEqual(['a:0'])
  expect(findEntries('gpu-deadbeef', FIXED, lab, [])[0]?.target).toBe(`#/gpu/${uuid}`)
})

test('a user is found, each once', () => {
  expect(usersOf(LAB)).toEqual(['alice', 'bob'])
  expect(labels('ali')).toEqual(['alice'])
})

test('an action is found by what else is said about it', () => {
  expect(labels('dark')).toEqual(['Change the theme'])
})

test('a name is text, whatever it looks like', () => {
  expect(labels('<b>')[0]).toBe('<b>&=1+1')
  expect(findEntries('<b>', FIXED, LAB, [])[0]?.target).toBe('#/host/%3Cb%3E%26%3D1%2B1')
  expect(labels('(((')).toEqual([])
})

test('no kind hides the others', () => {
  const many = model(...Array.from({ length: 3000 }, (_, at) => host(`fleet${at}`, [gpu({ users: ['fleetadmin'] })])))
  const found = labels('fleet', many)
  expect(found).toHaveLength(8)
  expect(found).toContain('fleetadmin')
  expect(found[0]).toBe('Fleet')
})
