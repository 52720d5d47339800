/**
 * The search: words that all have to fit a GPU.
 *
 *   free busy held booked unknown   its availability; several of them mean any of them
 *   up late down never              the status of its host; several mean any
 *   warning critical                its health; several mean any
 *   >40G  >= 80G  <24G  =16G        its memory; G is 10^9 bytes, GiB is 2^30, as everywhere in the API
 *   user:ann host:gpu07 model:h200  text in that place only
 *   -word                           none of it, also -free, -down, -critical
 *   anything else                   text in host, label, model, user or UUID, or a GPU's own label: 0.5
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
  amount: number
  unit: string
}

/** Several of a kind mean any of them; an empty set asks for nothing. */
interface Kinds {
  states: ReadonlySet<Availability>
  statuses: ReadonlySet<HostStatus>
  health: ReadonlySet<HealthLevel>
}

export interface Query extends Kinds {
  without: Kinds
  memory: readonly MemoryBound[]
  words: readonly Word[]
  /** What looks like more than text but cannot be read, as `>lots`. Nothing fits it. */
  unclear: readonly string[]
  isEmpty: boolean
}

const STATUSES: readonly HostStatus[] = ['up', 'late', 'down', 'never']
const LEVELS: readonly HealthLevel[] = ['warning', 'critical']
const MEMORY = /^(>=|<=|>|<|=)(\d+(?:\.\d+)?)([kmgt]i?)?b?$/
/** As in the API's `min_memory`. A card sold with 48 GB holds 48.3 of them, and `>=48G` has to find it. */
const BYTES: Record<string, number> = { k: 1e3, m: 1e6, g: 1e9, t: 1e12, ki: 2 ** 10, mi: 2 ** 20, gi: 2 ** 30, ti: 2 ** 40 }
const LIKE_MEMORY = /^-?[<>=]/
const PLACES: Record<string, Place> = { host: 'host', model: 'model', user: 'user' }

export function parseQuery(text: string): Query {
  const wanted = noKinds()
  const without = noKinds()
  const memory: MemoryBound[] = []
  const words: Word[] = []
  const unclear: string[] = []
  for (const token of tokens(text)) {
    const bound = memoryBound(token)
    if (bound !== null) memory.push(bound)
    else if (addKind(wanted, token) || (token.startsWith('-') && addKind(without, token.slice(1)))) continue
    else if (isUnclear(token)) unclear.push(token)
    else words.push(word(token))
  }
  return { ...wanted, without, memory, words, unclear, isEmpty: text.trim() === '' }
}

function noKinds() {
  return { states: new Set<Availability>(), statuses: new Set<HostStatus>(), health: new Set<HealthLevel>() }
}

function addKind(kinds: ReturnType<typeof noKinds>, token: string): boolean {
  if (isOneOf(AVAILABILITIES, token)) kinds.states.add(token)
  else if (isOneOf(STATUSES, token)) kinds.statuses.add(token)
  else if (isOneOf(LEVELS, token)) kinds.health.add(token)
  else return false
  return true
}

/** An amount that is none, a place without text, a lone minus. */
function isUnclear(token: string): boolean {
  const bare = token.replace(/^-/, '')
  return bare === '' || LIKE_MEMORY.test(token) || (bare.endsWith(':') && PLACES[bare.slice(0, -1)] !== undefined)
}

/** Lower-case words; quotes keep a phrase together, and `> 40 G` is one word as `>40G` is. */
function tokens(text: string): string[] {
  const joined = text.toLowerCase().replace(/([<>=]) +(?=\d)/g, '$1').replace(/([<>=]\d[\d.]*) +(?=[kmgt]i?b?(?: |$))/g, '$1')
  const found = joined.match(/-?(?:\w+:)?"[^"]*"|\S+/g) ?? []
  return found.map((token) => token.replaceAll('"', '')).filter((token) => token !== '')
}

function isOneOf<T extends string>(values: readonly T[], token: string): token is T {
  return (values as readonly string[]).includes(token)
}

function memoryBound(token: string): MemoryBound | null {
  const parts = MEMORY.exec(token)
  if (parts === null) return null
  return { operator: parts[1] as MemoryBound['operator'], amount: Number(parts[2]), unit: parts[3] ?? 'g' }
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
    query.unclear.length === 0 &&
    !query.without.states.has(gpu.availability) &&
    !query.without.statuses.has(host.status) &&
    !query.without.health.has(gpu.health) &&
    isAmong(query.states, gpu.availability) &&
    isAmong(query.statuses, host.status) &&
    isAmong(query.health, gpu.health) &&
    query.memory.every((bound) => fits(bound, gpu.memory_total_bytes)) &&
    query.words.every((word) => isIn(word, host, gpu) === word.wanted)
  )
}

/** Whether a host without any readable GPU belongs to the answer: only what is said about the host counts. */
export function matchesBareHost(query: Query, host: Host): boolean {
  const asksForGpu = query.unclear.length > 0 || query.states.size > 0 || query.health.size > 0 || query.memory.length > 0
  return !asksForGpu && !query.without.statuses.has(host.status) && isAmong(query.statuses, host.status) && query.words.every((word) => isIn(word, host, null) === word.wanted)
}

function isAmong<T>(wanted: ReadonlySet<T>, value: T): boolean {
  return wanted.size === 0 || wanted.has(value)
}

/** No card holds a round number of bytes: equal is what reads the same, in units of 1000 or, as on the cards, of 1024. */
function fits(bound: MemoryBound, memoryBytes: number | null): boolean {
  if (memoryBytes === null) return false
  const { operator, amount, unit } = bound
  const limit = amount * (BYTES[unit] ?? 1)
  if (operator === '>') return memoryBytes > limit
  if (operator === '<') return memoryBytes < limit
  if (operator === '=') return [unit, `${unit.charAt(0)}i`].some((each) => Math.round(memoryBytes / (BYTES[each] ?? 1)) === amount)
  return operator === '>=' ? memoryBytes >= limit : memoryBytes <= limit
}

function isIn(word: Word, host: Host, gpu: Gpu | null): boolean {
  const { text, place } = word
  if (place === 'host') return isInHost(text, host)
  if (place === 'model') return gpu !== null && isInModel(text, gpu)
  if (place === 'user') return gpu !== null && isInUsers(text, gpu)
  if (isInHost(text, host) || gpu?.label === text) return true
  // A state that is still being typed fits already: "fre".
  return gpu !== null && (isInModel(text, gpu) || isInUsers(text, gpu) || gpu.availability.startsWith(text) || isInUuid(text, gpu))
}

function isInHost(text: string, host: Host): boolean {
  if (lower(host.name).includes(text) || lower(host.display_name).includes(text)) return true
  return Object.entries(host.labels).some(([key, value]) => lower(value).includes(text) || lower(`${key}=${value}`) === text)
}

function isInModel(text: string, gpu: Gpu): boolean {
  return lower(gpu.name).includes(text) || lower(gpu.display_name).includes(text)
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

/** The search text with a state added, or taken out where it stands already. Asking for it ends its exclusion. */
export function toggleState(text: string, state: Availability): string {
  const parts = text.split(/\s+/).filter((part) => part !== '' && part.toLowerCase() !== `-${state}`)
  const without = parts.filter((part) => part.toLowerCase() !== state)
  return (without.length < parts.length ? without : [state, ...parts]).join(' ')
}
