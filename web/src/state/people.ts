/**
 * Who is on which GPUs now, from the live fleet.
 *
 * Whom nobody could name is one row of their own: processes without an owner, memory that is held without a process,
 * GPUs in use whose processes could not be read. What a silent host last told is listed, but never counted.
 */
import type { Gpu, Host, Process } from '../api/types'
import { bytes, clockTime, count, DASH, duration, elapsed, percent, plain, utcTime } from './format'
import type { Figure } from './lines'

/** A GPU that a person is on. */
export interface Holding {
  host: Host
  gpu: Gpu
  /** Theirs; empty where the list could not be read, or is empty while memory is held. */
  processes: readonly Process[]
  /** On that GPU; null where a part of it is not known. */
  memory: number | null
  /** The host is silent: this was so when it last reported. */
  isPast: boolean
}

/** One who is on GPUs now. Sums and means cover what is known; null when nothing is. */
export interface Person {
  /** Tells rows apart: also whom nobody could name. */
  key: string
  /** Null: nobody could say who it is. */
  user: string | null
  holdings: readonly Holding[]
  /** GPUs of hosts that report. */
  gpus: number
  pastGpus: number
  memory: number | null
  /** Some memory is known, but not all: the sum is at least that. */
  isMemoryPart: boolean
  /** Null where the lists of processes could not be read at all. */
  processes: number | null
  utilization: number | null
  idleGpus: number
  /** When the first of the idle ones fell idle. */
  idleSince: number | null
  /** When their oldest process started. */
  since: number | null
}

/** Not the name of any login: those have no such character. */
const NOBODY_KNOWN = '\u0000'

export function keyOf(user: string | null): string {
  return user ?? NOBODY_KNOWN
}

/** Everybody who is on a GPU, in no order that matters. */
export function peopleNow(hosts: Iterable<Host>): Person[] {
  const found = new Map<string, { user: string | null; holdings: Holding[] }>()
  for (const host of hosts) {
    for (const gpu of host.gpus) {
      for (const [user, processes] of ownersOf(gpu, host)) {
        const key = keyOf(user)
        let person = found.get(key)
        if (person === undefined) found.set(key, (person = { user, holdings: [] }))
        person.holdings.push(holdingOf(host, gpu, processes))
      }
    }
  }
  return [...found].map(([key, { user, holdings }]) => sumUp(key, user, holdings))
}

/** Who is on the GPU with which processes. A display server uses a GPU, but nobody works there. */
function ownersOf(gpu: Gpu, host: Host): Map<string | null, Process[]> {
  const owners = new Map<string | null, Process[]>()
  for (const process of (gpu.processes ?? []) as Process[]) {
    if (process.display) continue
    const user = process.user ?? null
    const theirs = owners.get(user)
    if (theirs === undefined) owners.set(user, [process])
    else theirs.push(process)
  }
  const state = host.status === 'up' ? gpu.availability : gpu.last_seen
  if (owners.size === 0 && (state === 'busy' || state === 'held')) {
    // Some ways in name the people without their processes.
    for (const user of gpu.users.length > 0 ? gpu.users : [null]) owners.set(user, [])
  }
  return owners
}

function holdingOf(host: Host, gpu: Gpu, processes: readonly Process[]): Holding {
  return { host, gpu, processes, memory: memoryOf(gpu, processes), isPast: host.status !== 'up' }
}

/** What their processes hold; all of the GPU's where they are alone on it and that is not told by process. */
function memoryOf(gpu: Gpu, processes: readonly Process[]): number | null {
  let sum = 0
  for (const process of processes) {
    if (process.memory_used_bytes == null) return aloneOn(gpu, processes) ? gpu.memory_used_bytes : null
    sum += process.memory_used_bytes
  }
  return processes.length > 0 ? sum : aloneOn(gpu, processes) ? gpu.memory_used_bytes : null
}

function aloneOn(gpu: Gpu, processes: readonly Process[]): boolean {
  return gpu.users.length <= 1 && (gpu.processes === null || gpu.processes.length === processes.length)
}

function sumUp(key: string, user: string | null, holdings: readonly Holding[]): Person {
  const current = holdings.filter((holding) => !holding.isPast)
  const idle = current.filter(({ gpu }) => gpu.availability === 'held')
  const memories = current.map(({ memory }) => memory)
  return {
    key,
    user,
    holdings,
    gpus: current.length,
    pastGpus: holdings.length - current.length,
    memory: sumOfKnown(memories),
    isMemoryPart: memories.includes(null),
    processes: countProcesses(current),
    utilization: meanOfKnown(current.map(({ gpu }) => gpu.utilization_percent)),
    idleGpus: idle.length,
    idleSince: least(idle.map(({ gpu }) => gpu.since)),
    since: least(current.flatMap(({ processes }) => processes.map((process) => process.started_at))),
  }
}

/** One process on several GPUs is one. */
function countProcesses(holdings: readonly Holding[]): number | null {
  if (holdings.every(({ gpu }) => gpu.processes === null)) return null
  return new Set(holdings.flatMap(({ host, processes }) => processes.map(({ pid }) => `${host.id} ${pid}`))).size
}

function known(values: readonly (number | null | undefined)[]): number[] {
  return values.filter((value) => typeof value === 'number')
}

function sumOfKnown(values: readonly (number | null)[]): number | null {
  const numbers = known(values)
  return numbers.length === 0 ? null : numbers.reduce((sum, value) => sum + value, 0)
}

function meanOfKnown(values: readonly (number | null)[]): number | null {
  const sum = sumOfKnown(values)
  return sum === null ? null : sum / known(values).length
}

function least(values: readonly (number | null | undefined)[]): number | null {
  const numbers = known(values)
  return numbers.length === 0 ? null : numbers.reduce((a, b) => Math.min(a, b))
}

export const SORTS = ['gpus', 'user', 'memory', 'processes', 'utilization', 'idle', 'since'] as const
export type PeopleSort = (typeof SORTS)[number]

/** A column and its direction. `isTurned`: the other way round than one looks first. */
export interface Order {
  by: PeopleSort
  isTurned: boolean
}

/** `-memory` in an address is the column turned round. What makes no sense is the first order. */
export function readOrder(text: string | null): Order {
  const isTurned = text?.startsWith('-') ?? false
  const by = SORTS.find((known) => known === text?.slice(isTurned ? 1 : 0))
  return by === undefined ? { by: 'gpus', isTurned: false } : { by, isTurned }
}

/** The order that a click on a column asks for, as it stands in the address; empty for the usual one. */
export function turnOrder(order: Order, by: PeopleSort): string {
  const isTurned = order.by === by && !order.isTurned
  return `${isTurned ? '-' : ''}${by}`.replace(/^gpus$/, '')
}

const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

/** Most first; the longest first of times; names from A. */
const RANKS: Record<Exclude<PeopleSort, 'user'>, (person: Person) => number | null> = {
  gpus: (person) => person.gpus,
  memory: (person) => person.memory,
  processes: (person) => person.processes,
  utilization: (person) => person.utilization,
  idle: (person) => (person.idleSince === null ? null : -person.idleSince),
  since: (person) => (person.since === null ? null : -person.since),
}

/** What is not known comes last either way. Of the same memory who has more processes comes first; equal ones are by
 *  name, whom nobody could name after all others. */
export function sortPeople(people: readonly Person[], { by, isTurned }: Order): Person[] {
  const turn = isTurned ? -1 : 1
  return [...people].sort((a, b) => {
    if (by === 'user') return Number(a.user === null) - Number(b.user === null) || turn * names(a, b)
    const left = RANKS[by](a)
    const right = RANKS[by](b)
    if (left === null || right === null) return Number(left === null) - Number(right === null) || names(a, b)
    return turn * (right - left) || (by === 'memory' ? turn * ((b.processes ?? -1) - (a.processes ?? -1)) : 0) || names(a, b)
  })
}

function names(a: Person, b: Person): number {
  return Number(a.user === null) - Number(b.user === null) || byName.compare(a.user ?? '', b.user ?? '')
}

/** Every word stands in the name, or in a host or model that the person is on. */
export function findPeople(people: readonly Person[], text: string): Person[] {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== '')
  return words.length === 0 ? [...people] : people.filter((person) => words.every((word) => isAbout(person, word)))
}

function isAbout(person: Person, word: string): boolean {
  if ((person.user ?? NOT_KNOWN).toLowerCase().includes(word)) return true
  return person.holdings.some(({ host, gpu }) => [host.name, host.display_name, gpu.display_name].some((text) => text.toLowerCase().includes(word)))
}

export const NOT_KNOWN = 'not known'

/** The GPUs of one host in a person's row: `gpu01: 0,1`. */
export interface Place {
  id: string
  /** As the hub calls it. */
  host: string
  /** As people do. */
  name: string
  labels: string
  isPast: boolean
  title: string
}

export interface PersonText {
  name: Figure
  gpus: Figure
  places: Place[]
  memory: Figure
  processes: Figure
  utilization: Figure
  idle: Figure
  since: Figure
}

/** A row in words. `now` is the hub's clock. */
export function personText(person: Person, now: number): PersonText {
  return {
    name: person.user === null ? { text: NOT_KNOWN, title: 'on GPUs, but nobody could say who: processes without an owner, or lists that could not be read' } : { text: plain(person.user), title: undefined },
    gpus: { text: String(person.gpus), title: person.pastGpus === 0 ? undefined : `${count(person.pastGpus, 'GPU')} more on hosts that are silent` },
    places: placesOf(person.holdings, now),
    memory: memoryText(person),
    processes: person.processes === null ? { text: DASH, title: reasonOf(person, 'processes') } : { text: String(person.processes), title: undefined },
    utilization: { text: percent(person.utilization), title: person.utilization === null ? reasonOf(person, 'utilization_percent') : 'of their GPUs on average, with what others do there' },
    idle: idleText(person, now),
    since: person.since === null ? { text: DASH, title: 'when it started is not reported' } : { text: clockTime(person.since, now), title: `for ${duration(elapsed(person.since, now))}, since ${utcTime(person.since)}` },
  }
}

function memoryText(person: Person): Figure {
  if (person.memory === null) return { text: DASH, title: reasonOf(person, 'memory_used_bytes') }
  return person.isMemoryPart ? { text: `≥ ${bytes(person.memory)}`, title: 'the memory of some of their processes is not known' } : { text: bytes(person.memory), title: undefined }
}

function idleText(person: Person, now: number): Figure {
  if (person.idleGpus === 0 || person.idleSince === null) return { text: '', title: undefined }
  const time = duration(elapsed(person.idleSince, now))
  return { text: `${person.idleGpus} for ${time}`, title: `${count(person.idleGpus, 'GPU')} held without work, the longest for ${time}, since ${utcTime(person.idleSince)}` }
}

function reasonOf(person: Person, field: string): string {
  for (const { gpu, processes } of person.holdings) {
    const reason = gpu.reasons[field] ?? processes[0]?.reasons?.[field]
    if (reason !== undefined) return plain(reason)
  }
  return 'not reported'
}

/** So many hosts are named; of a few more than that all are. */
const FIRST_PLACES = 16
const FEW_MORE = 4

/** How many hosts stand in a row at first: whoever is on hundreds must not hide everybody else. */
export function placesShown(count: number): number {
  return count <= FIRST_PLACES + FEW_MORE ? count : FIRST_PLACES
}

/** A place a host, in the order of their names. */
export function placesOf(holdings: readonly Holding[], now: number): Place[] {
  const byHost = new Map<string, Holding[]>()
  for (const holding of holdings) {
    const there = byHost.get(holding.host.id)
    if (there === undefined) byHost.set(holding.host.id, [holding])
    else there.push(holding)
  }
  return [...byHost].map(([id, there]) => placeOf(id, there, now)).sort((a, b) => byName.compare(a.name, b.name))
}

function placeOf(id: string, there: readonly Holding[], now: number): Place {
  const host = there[0]?.host as Host
  const isPast = host.status !== 'up'
  const lines = there.map(({ gpu, memory }) => `GPU ${gpu.label} ${gpu.display_name}: ${isPast ? `last ${gpu.last_seen ?? 'seen'}` : gpu.availability}, ${bytes(memory)}`)
  const silent = isPast ? [`silent for ${duration(elapsed(host.last_report_at, now))}: this is from then`] : []
  return { id, host: host.name, name: plain(host.display_name), labels: there.map(({ gpu }) => gpu.label).join(','), isPast, title: plain([...silent, ...lines].join(' · ')) }
}
