import { describe, expect, it } from 'vitest'
import type { Gpu, Process } from '../api/types'
import { activeUsers, busyGpu, GIB, gpu, host, NOW, someProcess } from '../testing/samples'
import { findUsers, userText, readOrder, sortUsers, turnOrder, type ActiveUser, placesShown, withFigures } from './users'

function on(user: string | null, pid: number, gib: number | null = 10, changes: Partial<Process> = {}): Process {
  return { ...someProcess, pid, user, memory_used_bytes: gib === null ? null : gib * GIB, started_at: NOW - 3600, ...changes }
}

function used(processes: Process[], changes: Partial<Gpu> = {}): Gpu {
  const users = [...new Set(processes.flatMap(({ user }) => (user === null ? [] : [user])))]
  return busyGpu('', { users, processes, ...changes })
}

function find(people: ActiveUser[], user: string | null): ActiveUser {
  return people.find((person) => person.user === user) as ActiveUser
}

describe('who is on GPUs', () => {
  it('is told by person over all hosts', () => {
    const people = activeUsers([
      host('gpu01', [used([on('ann', 1)]), used([on('ann', 2, 20)]), gpu()]),
      host('gpu07', [used([on('ben', 9)]), used([on('ann', 1, 1)], { utilization_percent: 37 })]),
    ])
    expect(people.map(({ user }) => user).sort()).toEqual(['ann', 'ben'])
    const ann = find(people, 'ann')
    expect(ann).toMatchObject({ gpus: 3, memory: 31 * GIB, processes: 3, utilization: (97 + 97 + 37) / 3, since: NOW - 3600 })
    const text = userText(ann, NOW)
    expect(text.places.map(({ name, labels }) => `${name}: ${labels}`)).toEqual(['gpu01: 0,1', 'gpu07: 1'])
    expect(text.memory.text).toBe('31 GiB')
  })

  it('counts a process on two GPUs once', () => {
    expect(activeUsers([host('a', [used([on('ann', 1)]), used([on('ann', 1)])])])[0]?.processes).toBe(1)
  })

  it('tells two on one GPU apart', () => {
    const people = activeUsers([host('a', [used([on('ann', 1, 4), on('ben', 2, 6)])])])
    expect(people.map(({ user, gpus, memory }) => [user, gpus, memory])).toEqual([['ann', 1, 4 * GIB], ['ben', 1, 6 * GIB]])
  })

  it('has nobody for a display server', () => {
    expect(activeUsers([host('a', [gpu({ processes: [on('root', 1, 1, { display: true })] })])])).toEqual([])
  })
})

describe('whom nobody could name', () => {
  it('is a row of its own', () => {
    const people = activeUsers([host('a', [used([on(null, 1), on('ann', 2)])])])
    expect(find(people, null)).toMatchObject({ gpus: 1, processes: 1 })
    expect(userText(find(people, null), NOW).name.text).toBe('unknown user')
  })

  it('also holds memory without a process, and GPUs whose processes could not be read', () => {
    const orphaned = gpu({ availability: 'idle', processes: [], memory_used_bytes: 5 * GIB })
    const unread = gpu({ availability: 'busy', processes: null, reasons: { processes: 'no permission' } })
    const both = activeUsers([host('a', [orphaned, unread])])[0] as ActiveUser
    expect(both).toMatchObject({ user: null, gpus: 2, idleGpus: 1, memory: 5 * GIB, processes: 0 })
    const text = userText(activeUsers([host('a', [unread])])[0] as ActiveUser, NOW)
    expect(text.processes).toEqual({ text: '–', title: 'no permission' })
  })

  it('is not mistaken for somebody of that name', () => {
    expect(activeUsers([host('a', [used([on(null, 1), on('unknown user', 2)])])])).toHaveLength(2)
  })
})

describe('what is not known', () => {
  it('is no zero: a part makes the sum the least it can be', () => {
    const [ann] = activeUsers([host('a', [used([on('ann', 1, 4)]), used([on('ann', 2, null), on('ben', 3)])])])
    expect(userText(ann as ActiveUser, NOW).memory.text).toBe('≥ 4.0 GiB')
  })

  it('is taken from the GPU where one is alone on it', () => {
    const [ann] = activeUsers([host('a', [used([on('ann', 1, null)], { memory_used_bytes: 7 * GIB })])])
    expect(ann).toMatchObject({ memory: 7 * GIB, isMemoryPart: false })
  })

  it('is a dash with its reason', () => {
    const [ann] = activeUsers([host('a', [used([on('ann', 1, null, { started_at: null })], { memory_used_bytes: null, utilization_percent: null, reasons: { utilization_percent: 'MIG has none', memory_used_bytes: 'lost' } })])])
    const text = userText(ann as ActiveUser, NOW)
    expect([text.memory, text.utilization]).toEqual([{ text: '–', title: 'lost' }, { text: '–', title: 'MIG has none' }])
    expect(text.since.text).toBe('–')
  })

  it('is what a silent host last told: listed, not counted', () => {
    const silent = host('b', [used([on('ann', 2)], { availability: 'unknown', last_seen: 'busy' })], { status: 'down', last_report_at: NOW - 180 })
    const [ann] = activeUsers([host('a', [used([on('ann', 1)])]), silent])
    expect(ann).toMatchObject({ gpus: 1, pastGpus: 1, memory: 10 * GIB })
    expect(userText(ann as ActiveUser, NOW).places[1]).toMatchObject({ name: 'b', isPast: true })
    expect(userText(ann as ActiveUser, NOW).gpus.title).toBe('1 GPU more on hosts that are not reporting')
  })
})

it('tells how many GPUs are idle, and since when', () => {
  const idle = (hours: number): Gpu => used([on('ann', hours)], { availability: 'idle', utilization_percent: 0, since: NOW - hours * 3600 })
  const [ann] = activeUsers([host('a', [idle(2), idle(5), used([on('ann', 9)])])])
  expect(ann).toMatchObject({ idleGpus: 2, idleSince: NOW - 5 * 3600 })
  expect(userText(ann as ActiveUser, NOW).idle.text).toBe('2 for 5h')
})

describe('the order', () => {
  const people = activeUsers([
    host('a', [used([on('zoe', 1, 60)]), used([on('zoe', 2, null), on(null, 8)]), used([on('ann', 3, 5)])]),
    host('b', [used([on('ben', 4, 70)])]),
  ])
  const order = (text: string): (string | null)[] => sortUsers(people, readOrder(text)).map(({ user }) => user)

  it('begins with who has most, whom nobody could name last among equals', () => expect(order('')).toEqual(['zoe', 'ann', 'ben', null]))
  it('turns', () => expect(order('-gpus')).toEqual(['ann', 'ben', null, 'zoe']))
  it('is by name', () => expect(order('user')).toEqual(['ann', 'ben', 'zoe', null]))
  it('has what is not known last, also when turned', () => {
    const idle = sortUsers(people, readOrder('-idle')).map(({ user }) => user)
    expect(idle.at(-1)).toBeNull()
  })
  it('has more processes first among those of the same memory', () => {
    const same = activeUsers([host('a', [used([on('ann', 1, 20)]), used([on('ben', 2, 10), on('ben', 3, 10)])])])
    expect(sortUsers(same, readOrder('memory')).map(({ user }) => user)).toEqual(['ben', 'ann'])
    expect(sortUsers(same, readOrder('-memory')).map(({ user }) => user)).toEqual(['ann', 'ben'])
  })
  it('is the usual one for nonsense', () => expect(readOrder('-nonsense')).toEqual({ by: 'gpus', isTurned: false }))
  it('turns with the second click', () => {
    expect(turnOrder(readOrder(''), 'memory')).toBe('memory')
    expect(turnOrder(readOrder('memory'), 'memory')).toBe('-memory')
    expect(turnOrder(readOrder('-memory'), 'memory')).toBe('memory')
    expect(turnOrder(readOrder('memory'), 'gpus')).toBe('')
  })
})

it('finds people by name, host and model', () => {
  const people = activeUsers([host('gpu01', [used([on('ann', 1)])]), host('gpu02', [used([on('ben', 1)])])])
  expect(findUsers(people, ' GPU02 a100 ').map(({ user }) => user)).toEqual(['ben'])
  expect(findUsers(people, 'ann gpu02')).toEqual([])
  expect(findUsers(people, '')).toHaveLength(2)
})

it('shows hostile names without what turns a line around', () => {
  const [one] = activeUsers([host('a', [used([on('\u202egnp', 1)])])])
  expect(userText(one as ActiveUser, NOW).name.text).toBe('\ufffdgnp')
})

it('whoever is on hundreds of hosts does not hide everybody else', () => {
  expect([1, 20, 21, 700].map(placesShown)).toEqual([1, 20, 16, 16])
})

describe('of a fleet whose processes are not streamed', () => {
  const row = { user: 'alice', memory_used_bytes: 3 * 2 ** 30, is_memory_part: true, processes: 7, utilization_percent: 41.6, since: NOW - 60, gpu_count: 1, gpus: ['a-0'], reasons: {} }
  const short = host('a', [busyGpu('alice', { processes: null, utilization_percent: null, memory_used_bytes: null })])

  it('has the figures that the hub counted', () => {
    const text = userText(withFigures(activeUsers([short]), [row])[0] as ActiveUser, NOW)
    expect([text.memory.text, text.processes.text, text.utilization.text]).toEqual(['≥ 3.0 GiB', '7', '42%'])
  })

  it('has dashes for whom the hub has counted nothing', () => {
    const text = userText(withFigures(activeUsers([short]), [{ ...row, user: 'bob' }])[0] as ActiveUser, NOW)
    expect([text.memory.text, text.processes.text, text.utilization.text]).toEqual(['–', '–', '–'])
  })
})
