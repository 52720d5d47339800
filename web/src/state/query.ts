/**
 * The search: words that all have to fit a GPU.
 *
 *   free busy held booked unknown   its availability; several of them mean any of them
 *   up late down never              the status of its host; several mean any
 *   warning critical                its health; several mean any
 *   >40G  >=80G  <24G  =16G         its memory in GiB, rounded as it is written on the box
 *   user:ann host:gpu07 model:h200  text in that place only
 *   -word                           none of it
 *   anything else                   text in host, label, model, user or UUID
 */
import type { Availability, Gpu, HealthLevel, Host, HostStatus } from '../api/types'
import { AVAILABILITIES } from './fleet'

type Place = 'any' | 'host' | 'model' | 'user'

interface Word {
  text: string
  place: Place
  wanted: boolean
}

interface MemoryBound {
  operator: '>' | '>=' | '<' | '<=' | '='
  gib: number
}

export interface Query {
  states: ReadonlySet<Availability>
  statuses: ReadonlySet<HostStatus>
  health: ReadonlySet<HealthLevel>
  memory: readonly MemoryBound[]
  words: readonly Word[]
  isEmpty: boolean
}

const STATUSES: readonly HostStatus[] = ['up', 'late', 'down', 'never']
const LEVELS: readonly HealthLevel[] = ['warning', 'critical']
const MEMORY = /^(>=|<=|>|<|=)(\d+(?:\.\d+)?)(m|g|t)?(?:i?b)?$/i
const IN_GIB: Record<string, number> = { m: 1 / 1024, g: 1, t: 1024 }
const PLACES: Record<string, Place> = { host: 'host', model: 'model', user: 'user' }

export function parseQuery(text: string): Query {
  const states = new Set<Availability>()
  const statuses = new Set<HostStatus>()
  const health = new Set<HealthLevel>()
  const memory: MemoryBound[] = []
  const words: Word[] = []
  for (const token of tokens(text)) {
    const bound = memoryBound(token)
    if (isOneOf(AVAILABILITIES, token)) states.add(token)
    else if (isOneOf(STATUSES, token)) statuses.add(token)
    else if (isOneOf(LEVELS, token)) health.add(token)
    else if (bound !== null) memory.push(bound)
    else words.push(word(token))
  }
  return { states, statuses, health, memory, words, isEmpty: text.trim() === '' }
}

/** Lower-case words; quotes keep a phrase together. */
function tokens(text: string): string[] {
  const found = text.toLowerCase().match(/-?(?:\w+:)?"[^"]*"|\S+/g) ?? []
  return found.map((token) => token.replaceAll('"', '')).filter((token) => token !== '')
}

function isOneOf<T extends string>(values: readonly T[], token: string): token is T {
  return (values as readonly string[]).includes(token)
}

function memoryBound(token: string): MemoryBound | null {
  const parts = MEMORY.exec(token)
  if (parts === null) return null
  const scale = IN_GIB[parts[3]?.toLowerCase() ?? 'g'] ?? 1
  return { operator: parts[1] as MemoryBound['operator'], gib: Number(parts[2]) * scale }
}

function word(token: string): Word {
  const wanted = !(token.startsWith('-') && token.length > 1)
  const bare = wanted ? token : token.slice(1)
  const colon = bare.indexOf(':')
  const place = colon > 0 && colon < bare.length - 1 ? PLACES[bare.slice(0, colon)] : undefined
  return place === undefined ? { text: bare, place: 'any', wanted } : { text: bare.slice(colon + 1), place, wanted }
}

export function matchesGpu(query: Query, host: Host, gpu: Gpu): boolean {
  return (
    isAmong(query.states, gpu.availability) &&
    isAmong(query.statuses, host.status) &&
    isAmong(query.health, gpu.health) &&
    query.memory.every((bound) => fits(bound, gpu.memory_total_bytes)) &&
    query.words.every((word) => isIn(word, host, gpu) === word.wanted)
  )
}

/** Whether a host without any readable GPU belongs to the answer: only what is said about the host counts. */
export function matchesBareHost(query: Query, host: Host): boolean {
  const asksForGpu = query.states.size > 0 || query.health.size > 0 || query.memory.length > 0
  return !asksForGpu && isAmong(query.statuses, host.status) && query.words.every((word) => isIn(word, host, null) === word.wanted)
}

function isAmong<T>(wanted: ReadonlySet<T>, value: T): boolean {
  return wanted.size === 0 || wanted.has(value)
}

function fits(bound: MemoryBound, memoryBytes: number | null): boolean {
  if (memoryBytes === null) return false
  const gib = Math.round(memoryBytes / 2 ** 30)
  if (bound.operator === '>') return gib > bound.gib
  if (bound.operator === '<') return gib < bound.gib
  if (bound.operator === '=') return gib === Math.round(bound.gib)
  return bound.operator === '>=' ? gib >= bound.gib : gib <= bound.gib
}

function isIn(word: Word, host: Host, gpu: Gpu | null): boolean {
  const { text, place } = word
  if (place === 'host') return isInHost(text, host)
  if (place === 'model') return gpu !== null && isInModel(text, gpu)
  if (place === 'user') return gpu !== null && isInUsers(text, gpu)
  if (isInHost(text, host)) return true
  // A state that is still being typed fits already: "fre".
  return gpu !== null && (isInModel(text, gpu) || isInUsers(text, gpu) || gpu.availability.startsWith(text) || isInUuid(text, gpu))
}

function isInHost(text: string, host: Host): boolean {
  if (lower(host.name).includes(text) || lower(host.display_name).includes(text)) return true
  return Object.entries(host.labels).some(([key, value]) => lower(value).includes(text) || lower(`${key}=${value}`) === text)
}

function isInModel(text: string, gpu: Gpu): boolean {
  return lower(gpu.name).includes(text)
}

function isInUsers(text: string, gpu: Gpu): boolean {
  return gpu.users.some((user) => lower(user).includes(text))
}

/** Short text stands in many a UUID by chance: "4090" is a model. */
function isInUuid(text: string, gpu: Gpu): boolean {
  return text.length >= 8 && lower(gpu.uuid).includes(text)
}

const lowered = new Map<string, string>()

/** Names repeat a thousandfold and every keystroke asks for all of them. */
function lower(text: string): string {
  let found = lowered.get(text)
  if (found === undefined) {
    if (lowered.size > 50_000) lowered.clear()
    found = text.toLowerCase()
    lowered.set(text, found)
  }
  return found
}

/** The search text with a state added, or taken out where it stands already. */
export function toggleState(text: string, state: Availability): string {
  const parts = text.split(/\s+/).filter((part) => part !== '')
  const without = parts.filter((part) => part.toLowerCase() !== state)
  return (without.length < parts.length ? without : [state, ...parts]).join(' ')
}
