import { expect, test } from 'vitest'
import { GIB, gpu, host, NOW, someProcess } from '../testing/samples'
import { processRows } from './processes'

const up = host('gpu01', [])

test('everything known of a process stands in its row', () => {
  const process = { ...someProcess, pid: 7, user: 'alice', command: 'python a.py', memory_used_bytes: 3 * GIB, utilization_percent: 55.4, started_at: NOW - 7200, container: 'box', job: '12', evidence: 'uid 1000' }
  expect(processRows(gpu({ processes: [process] }), up, NOW)?.[0]).toMatchObject({
    pid: 7,
    name: { text: 'alice' },
    command: { text: 'python a.py' },
    memory: { text: '3.0 GiB' },
    utilization: { text: '55%' },
    runtime: { text: '2h' },
    place: { text: 'box · job 12' },
    evidence: 'uid 1000',
  })
})

test('what is not known of a process is a dash with its reason, never a zero', () => {
  const process = { ...someProcess, reasons: { user: 'another namespace' } }
  expect(processRows(gpu({ processes: [process] }), up, NOW)?.[0]).toMatchObject({
    name: { text: '–', title: 'another namespace' },
    memory: { text: '–', title: 'not reported' },
    utilization: { text: '–' },
    runtime: { text: '–' },
  })
})

test('a list that could not be read is not an empty one', () => {
  expect(processRows(gpu({ processes: null }), up, NOW)).toBeNull()
  expect(processRows(gpu({ processes: [] }), up, NOW)).toEqual([])
})

test('two processes with one pid have rows of their own', () => {
  const rows = processRows(gpu({ processes: [someProcess, someProcess] }), up, NOW) ?? []
  expect(new Set(rows.map(({ key }) => key)).size).toBe(2)
})

test('the run time of a process does not grow while its host does not report', () => {
  const down = host('gpu01', [], { status: 'down', last_report_at: NOW - 600 })
  const rows = processRows(gpu({ processes: [{ ...someProcess, started_at: NOW - 7200 }] }), down, NOW)
  expect(rows?.[0]?.runtime.text).toBe('1h 50m')
})
