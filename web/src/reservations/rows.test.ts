import { expect, test } from 'vitest'
import { gpu, host } from '../testing/samples'
import { OPEN_UP_TO, pickedGpus, planRows, type Row, type RowChoice } from './rows'
import { gpusOf, reservation } from './samples'

const eight = Array.from({ length: 8 }, () => gpu())
const hosts = [host('gpu01', eight), host('gpu02', [gpu({ display_name: 'H200' }), gpu({ display_name: 'H200' })])]
const ALL: RowChoice = { text: '', isReservedOnly: false, expandedHosts: new Map() }
const ids = (rows: readonly Row[]): string[] => rows.map(({ id }) => id)
const plan = (choice: Partial<RowChoice>, reservations = [reservation()]) => planRows(hosts, reservations, { ...ALL, ...choice })

test('a host stands above its GPUs', () => {
  expect(ids(plan({}))).toHaveLength(12)
  expect(ids(plan({})).slice(8, 11)).toEqual(['gpu01-7', 'host gpu02', 'gpu02-0'])
})

test('a collapsed host is one row that still means all of its GPUs', () => {
  const rows = plan({ expandedHosts: new Map([['gpu01', false]]) })
  expect(ids(rows)).toEqual(['host gpu01', 'host gpu02', 'gpu02-0', 'gpu02-1'])
  expect(pickedGpus(rows, 'host gpu01', 'host gpu01')).toHaveLength(8)
})

test('many GPUs are collapsed unless somebody expands a host', () => {
  const many = Array.from({ length: OPEN_UP_TO / 8 + 1 }, (_, at) => host(`n${at}`, eight))
  expect(planRows(many, [], ALL).every(({ kind }) => kind === 'host')).toBe(true)
  expect(planRows(many, [], { ...ALL, expandedHosts: new Map([['n3', true]]) })).toHaveLength(many.length + 8)
})

test('words have to be in host, model, person or note', () => {
  const reservations = [reservation({ note: 'The paper' })]
  expect(ids(plan({ text: 'h200' }))).toEqual(['host gpu02', 'gpu02-0', 'gpu02-1'])
  expect(ids(plan({ text: 'ADA paper' }, reservations))).toEqual(['host gpu01', 'gpu01-0'])
  expect(plan({ text: 'nobody' })).toEqual([])
})

test('only what is reserved', () => expect(ids(plan({ isReservedOnly: true }, [reservation({ gpus: gpusOf('gpu02', 1) })]))).toEqual(['host gpu02', 'gpu02-1']))

test('a GPU that is gone keeps its row while it is reserved, and cannot be picked', () => {
  const gone = [{ uuid: 'lost', host: 'gpu01', label: '9', is_there: false }, { uuid: 'away', host: 'gpu99', label: '0', is_there: false }]
  const rows = plan({}, [reservation({ gpus: gone })])
  expect(rows.find(({ id }) => id === 'lost')).toMatchObject({ host: 'gpu01', isThere: false })
  expect(ids(rows).slice(-2)).toEqual(['host gpu99', 'away'])
  expect(pickedGpus(rows, 'lost', 'lost')).toEqual([])
  expect(pickedGpus(rows, 'gpu01-6', 'lost')).toEqual(['gpu01-6', 'gpu01-7'])
})

test('a drag over rows of one host means all of them, in either direction', () => {
  const rows = plan({})
  expect(pickedGpus(rows, 'gpu01-2', 'gpu01-4')).toEqual(['gpu01-2', 'gpu01-3', 'gpu01-4'])
  expect(pickedGpus(rows, 'gpu01-4', 'gpu01-2')).toEqual(['gpu01-2', 'gpu01-3', 'gpu01-4'])
  expect(pickedGpus(rows, 'gpu01-7', 'gpu02-0')).toEqual(['gpu01-7'])
})
