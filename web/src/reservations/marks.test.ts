import { expect, test } from 'vitest'
import { gpu, host, NOW } from '../testing/samples'
import { byRow, closedOn, countMarks, marksOf } from './marks'
import { planRows, type HostRow } from './rows'
import { gpusOf, reservation } from './samples'
import type { CurrentUser } from './texts'

const ADA: CurrentUser = { name: 'ada', mayReserve: true, mayAdminister: false, canLogIn: false }
const hosts = [host('gpu01', [gpu(), gpu(), gpu(), gpu()])]
const rowsOf = (isOpen: boolean) => planRows(hosts, [], { text: '', isReservedOnly: false, expandedHosts: new Map([['gpu01', isOpen]]) })
const marks = (reservations: Parameters<typeof marksOf>[1], who = ADA, conflicts: string[] = []) => marksOf(rowsOf(true), reservations, who, new Set(conflicts), NOW)

test('a reservation of several GPUs is one mark on all of their rows', () => {
  const [mark, ...others] = marks([reservation({ gpus: gpusOf('gpu01', 1, 2) })])
  expect(others).toEqual([])
  expect(mark?.rows).toEqual(['gpu01-1', 'gpu01-2'])
  expect([...byRow([mark!])]).toEqual([['gpu01-1', [mark]], ['gpu01-2', [mark]]])
})

test('only what is theirs, and not over, can be dragged; what runs only at its end', () => {
  const editable = (changes: Parameters<typeof reservation>[0], who = ADA) => marks([reservation(changes)], who).flatMap((mark) => (mark.kind === 'reservation' ? [[mark.canMove, mark.canStretch]] : []))[0]
  expect(editable({})).toEqual([true, true])
  expect(editable({ user: 'bob' })).toEqual([false, false])
  expect(editable({ user: 'bob' }, { ...ADA, mayAdminister: true })).toEqual([true, true])
  expect(editable({ start: NOW - 60 })).toEqual([false, true])
  expect(editable({ start: NOW - 60, end: NOW - 1 })).toEqual([false, false])
  expect(editable({ kind: 'claim' })).toEqual([false, false])
  expect(editable({}, { ...ADA, mayReserve: false })).toEqual([false, false])
})

test('a stranger on a reserved GPU shows while the reservation runs', () => {
  expect(marks([reservation({ start: NOW - 60 })], ADA, ['gpu01-0'])[0]?.classes).toContain('conflict')
  expect(marks([reservation()], ADA, ['gpu01-0'])[0]?.classes).not.toContain('conflict')
})

test('a collapsed host counts what is reserved, from step to step', () => {
  const [row] = rowsOf(false) as [HostRow]
  const HOUR = 3600
  const reservations = [reservation({ gpus: gpusOf('gpu01', 0, 1), start: NOW, end: NOW + 4 * HOUR }), reservation({ id: 2, gpus: gpusOf('gpu01', 2, 3), start: NOW + 2 * HOUR, end: NOW + 4 * HOUR }), reservation({ id: 3, gpus: gpusOf('gpu01', 0), start: NOW + 4 * HOUR, end: NOW + 5 * HOUR })]
  const counted = countMarks(row, reservations, NOW).map(({ start, end, text, classes }) => [start - NOW, end - NOW, text, classes.includes('full')])
  expect(counted).toEqual([[0, 2 * HOUR, '2 of 4', false], [2 * HOUR, 4 * HOUR, '4 of 4', true], [4 * HOUR, 5 * HOUR, '1 of 4', false]])
  expect(marksOf(rowsOf(false), reservations, ADA, new Set(), NOW)).toHaveLength(3)
  const [whole, ...others] = countMarks(row, reservations, NOW, true)
  expect(others).toEqual([])
  expect(whole).toMatchObject({ start: NOW, end: NOW + 5 * HOUR, text: '1–4 of 4' })
})

test('a hostile name is text without the signs that turn a line around', () => {
  const [mark] = marks([reservation({ user: '\u202eadmin', note: '<img src=x>' })])
  expect(mark).toMatchObject({ user: '\ufffdadmin', note: '<img src=x>' })
})

test('a reservation of a scheduler is shown with its source and cannot be moved', () => {
  const [mark] = marks([reservation({ user: 'ada', scheduler: 'slurm', name: 'course', is_read_only: true, gpus: gpusOf('gpu01', 1) })])
  expect(mark).toMatchObject({ canMove: false, canStretch: false, label: expect.stringContaining('slurm reservation course: ada') as string })
})

test('maintenance lies on the rows of its host, or of its GPU alone', () => {
  const window = { id: 3, host: 'gpu01', host_id: 'a', gpu: null as string | null, label: null, start: NOW, end: null as number | null, reason: 'new fans', created_by: 'root', created_at: NOW, state: 'running' as const, is_there: true }
  const rows = rowsOf(true)
  expect(rows.map((row) => closedOn(row, [window], NOW).length)).toEqual([1, 1, 1, 1, 1])
  expect(rows.map((row) => closedOn(row, [{ ...window, gpu: rows[2]!.id, end: NOW + 60 }], NOW).length)).toEqual([0, 0, 1, 0, 0])
  expect(closedOn(rows[0]!, [window], NOW)[0]).toMatchObject({ end: Infinity, label: expect.stringContaining('no end planned: new fans') as string })
  expect(closedOn(rows[0]!, [{ ...window, host: 'gpu02' }], NOW)).toEqual([])
})
