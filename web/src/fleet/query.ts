/**
 * The search: words that all have to fit a GPU.
 *
 *   free busy idle allocated reserved drained unknown   its availability; several of them mean any of them
 *   up late down never_seen         the status of its host; several mean any
 *   warning critical                its health; several mean any
 *   80G  >40G  >= 80G  <24G         its memory, in GiB as it is shown
 *   nobody                          nobody is using it: free, allocated, reserved or drained
 *   user:ann host:gpu07 model:h200  text in that place only; command:train and rack:r01 (any label) too
 *   gpu05:3                         GPU 3 of the host gpu05
 *   xid  xid79  xid 79  xid:79      a fault that the driver reported in the last day, or the reason why it is unknown
 *   -word                           none of it, also -free, -down, -critical
 *   anything else                   text in host, label, model, user or UUID, the beginning of a word of a command or of what
 *                                   is wrong (fell off), a vendor, an address, or a GPU's own label: 0.5
 *
 * Words that together are the value of a label are one: hall A.
 * src/gpudeck/views/filter.py is the same for the command line and the API. tests/captures/filter-cases.json is tried on both.
 */
import type { Availability, Gpu, HealthLevel, Host, HostStatus } from '../api/types'
import { AVAILABILITIES, isUnused } from '../ui/states'
import { lower } from '../ui/format'

type Place = 'any' | 'host' | 'model' | 'user' | 'command' | 'xid'

/** Of `xid`, no text is any of them. */
interface Word {
  text: string
  place: Place
  /** Where it is an amount of memory, as `80G`. */
  amount: MemoryBound | null
  wanted: boolean
  /** Models and users with and without it, and commands: what was found so far. */
  names: Map<string, boolean>
  commands: Map<string, boolean>
  /** The model that was looked at last. */
  last: { name: string; shown: string; answer: boolean }
}

interface MemoryBound {
  operator: '>' | '>=' | '<' | '<=' | '='
  bytes: number
}

/** Several of a kind mean any of them; an empty set asks for nothing. */
interface Kinds {
  states: ReadonlySet<Availability>
  statuses: ReadonlySet<HostStatus>
  health: ReadonlySet<HealthLevel>
}

export interface Query extends Kinds {
  without: Kinds
  /** Whether any kind is asked for or excluded. */
  hasKinds: boolean
  memory: readonly MemoryBound[]
  words: readonly Word[]
  /** What looks like more than text but cannot be read, as `>lots`. Nothing fits it. */
  unclear: readonly string[]
  isEmpty: boolean
}

const STATUSES: readonly HostStatus[] = ['up', 'late', 'down', 'never_seen']
const LEVELS: readonly HealthLevel[] = ['warning', 'critical']
/** A number without a unit is unclear. */
const MEMORY = /^(>=|<=|>|<|=)(\d+(?:\.\d+)?)([kmgt])i?b?$/
/** A MIG instance also has the name of its board, whose memory it does not have: A100-SXM4-80GB MIG 1g.10gb. */
const BOARD = /^.* mig /
const GIB = 2 ** 30
const LIKE_MEMORY = /^-?[<>=]/
const PLACES: ReadonlyMap<string, Place> = new Map((['host', 'model', 'user', 'command', 'xid'] as const).map((place) => [place, place]))
const XID = /^xid-?(\d*)$/
const NAMED_XID = /\bxid (\d+)/gi
/** The states of GPUs that nobody is using. */
const UNUSED: readonly Availability[] = AVAILABILITIES.filter(isUnused)
/** Less text begins a word of nearly every command. */
const SHORTEST_OF_COMMAND = 3
/** The shortest name of one: amd. */
const SHORTEST_VENDOR = 3
/** The words that are more than text. */
export const KEYWORDS: readonly string[] = [...AVAILABILITIES, ...STATUSES, ...LEVELS, 'nobody', 'xid']

/** The values of labels that are more than one word, in lower case, the longest first. */
export function phrasesOf(hosts: Iterable<Pick<Host, 'labels'>>): string[] {
  const found = new Set<string>()
  for (const { labels } of hosts) for (const key in labels) if (labels[key]!.includes(' ')) found.add(labels[key]!.toLowerCase())
  return [...found].sort((a, b) => b.length - a.length)
}

/** `phrases` are words that belong together also without quotes. */
export function parseQuery(text: string, phrases: readonly string[] = []): Query {
  const wanted = noKinds()
  const without = noKinds()
  const memory: MemoryBound[] = []
  const words: Word[] = []
  const unclear: string[] = []
  for (const token of tokens(text, phrases)) {
    const bound = memoryBound(token)
    if (bound !== null) memory.push(bound)
    else if (addKind(wanted, token) || (token.startsWith('-') && addKind(without, token.slice(1)))) continue
    else if (isUnclear(token)) unclear.push(token)
    else words.push(word(token))
  }
  const hasKinds = [wanted, without].some((kinds) => Object.values(kinds).some(({ size }) => size > 0))
  return { ...wanted, without, hasKinds, memory, words, unclear, isEmpty: text.trim() === '' }
}

function noKinds() {
  return { states: new Set<Availability>(), statuses: new Set<HostStatus>(), health: new Set<HealthLevel>() }
}

function addKind(kinds: ReturnType<typeof noKinds>, token: string): boolean {
  if (token === 'nobody') UNUSED.forEach((state) => kinds.states.add(state))
  else if (isOneOf(AVAILABILITIES, token)) kinds.states.add(token)
  else if (isOneOf(STATUSES, token)) kinds.statuses.add(token)
  else if (isOneOf(LEVELS, token)) kinds.health.add(token)
  else return false
  return true
}

/** An amount that is none, a place without text, a lone minus. */
function isUnclear(token: string): boolean {
  const bare = token.replace(/^-/, '')
  return bare === '' || LIKE_MEMORY.test(token) || (bare.endsWith(':') && PLACES.has(bare.slice(0, -1)))
}

/** What is wrong with a word that is unclear, as a sentence without its full stop. */
export function explainUnclear(token: string): string {
  const amount = /^(?:>=|<=|>|<|=)(\d+(?:\.\d+)?)$/.exec(token)
  if (amount !== null) return `${amount[1]} what? Write ${token}G`
  return `“${token}” is not understood`
}

/** Lower-case words; quotes keep a phrase together, and `> 40 G` is one word as `>40G` is, `xid 79` as `xid79`. */
export function tokens(text: string, phrases: readonly string[] = []): string[] {
  const joined = quotePhrases(text.toLowerCase(), phrases)
    .replace(/([<>=]) +(?=\d)/g, '$1')
    .replace(/([<>=]\d[\d.]*) +(?=[kmgt]i?b?(?: |$))/g, '$1')
    .replace(/(^|[ -])xid +(?=\d+(?: |$))/g, '$1xid')
  const found = joined.match(/-?(?:\w+[:=])?"[^"]*"|\S+/g) ?? []
  return found.map((token) => token.replaceAll('"', '')).filter((token) => token !== '')
}

/** As though they had been written with quotes: `room:hall a` is `room:"hall a"`. */
function quotePhrases(text: string, phrases: readonly string[]): string {
  if (!text.includes(' ') || text.includes('"')) return text
  for (const phrase of phrases) {
    const at = text.indexOf(phrase)
    const end = at + phrase.length
    if (at >= 0 && (at === 0 || ' -:='.includes(text[at - 1]!)) && (end === text.length || text[end] === ' ')) return `${text.slice(0, at)}"${phrase}"${text.slice(end)}`
  }
  return text
}

function isOneOf<T extends string>(values: readonly T[], token: string): token is T {
  return (values as readonly string[]).includes(token)
}

function memoryBound(token: string): MemoryBound | null {
  const parts = MEMORY.exec(token)
  if (parts === null) return null
  return { operator: parts[1] as MemoryBound['operator'], bytes: Number(parts[2]) * 1024 ** ('kmgt'.indexOf(parts[3] ?? '') + 1) }
}

function word(token: string): Word {
  const wanted = !(token.startsWith('-') && token.length > 1)
  const bare = wanted ? token : token.slice(1)
  const fault = XID.exec(bare)
  const rest = { wanted, amount: memoryBound(`=${bare}`), names: new Map<string, boolean>(), commands: new Map<string, boolean>(), last: { name: '', shown: '', answer: false } }
  if (fault !== null) return { text: fault[1] ?? '', place: 'xid', ...rest }
  const colon = bare.indexOf(':')
  const place = colon > 0 && colon < bare.length - 1 ? PLACES.get(bare.slice(0, colon)) : undefined
  return place === undefined ? { text: bare, place: 'any', ...rest } : { text: bare.slice(colon + 1), place, ...rest }
}

/** Which words of a query the host itself answers: the same for all its GPUs. */
export function wordsInHost({ words }: Query, host: Host): readonly boolean[] {
  return words.map(({ text, place }) => place === 'any' ? isInHost(text, host) || isInNote(text, host) : place === 'host' && isInHost(text, host))
}

/** Who asks for all GPUs of a host passes `inHost`. Each letter of a search asks this of every GPU. */
export function matchesGpu(query: Query, host: Host, gpu: Gpu, inHost = wordsInHost(query, host)): boolean {
  if (query.unclear.length > 0 || (query.hasKinds && !isOfKinds(query, host, gpu))) return false
  for (const bound of query.memory) if (!fits(bound, gpu.memory_total_bytes)) return false
  for (let at = 0; at < inHost.length; at++) {
    const word = query.words[at]!
    if (isIn(word, inHost[at]!, host, gpu) !== word.wanted) return false
  }
  return true
}

function isOfKinds({ states, statuses, health, without }: Query, { status }: Host, gpu: Gpu): boolean {
  return (
    !without.states.has(gpu.availability) &&
    !without.statuses.has(status) &&
    !without.health.has(gpu.health) &&
    isAmong(states, gpu.availability) &&
    isAmong(statuses, status) &&
    isAmong(health, gpu.health)
  )
}

/** Whether a host without any readable GPU belongs to the answer: only what is said about the host counts. */
export function matchesBareHost(query: Query, host: Host): boolean {
  const asksForGpu = query.unclear.length > 0 || query.states.size > 0 || query.health.size > 0 || query.memory.length > 0
  return !asksForGpu && !query.without.statuses.has(host.status) && isAmong(query.statuses, host.status) && wordsInHost(query, host).every((isInHost, at) => isInHost === query.words[at]?.wanted)
}

function isAmong<T>(wanted: ReadonlySet<T>, value: T): boolean {
  return wanted.size === 0 || wanted.has(value)
}

/** No card holds a round number of bytes: with whole GiB its memory is compared as it is shown, rounded. */
function fits({ operator, bytes }: MemoryBound, memoryBytes: number | null): boolean {
  if (memoryBytes === null) return false
  const memory = bytes > 0 && bytes % GIB === 0 ? Math.round(memoryBytes / GIB) * GIB : memoryBytes
  if (operator === '>') return memory > bytes
  if (operator === '<') return memory < bytes
  if (operator === '=') return memory === bytes
  return operator === '>=' ? memory >= bytes : memory <= bytes
}

function isIn(word: Word, isInItsHost: boolean, host: Host, gpu: Gpu): boolean {
  const { text, place } = word
  if (place === 'model') return isInModel(word, gpu)
  if (place === 'user') return isInUsers(word, gpu)
  if (place === 'command') return isInCommands(word, gpu)
  if (place === 'xid') return xidsOf(gpu).some((code) => text === '' || code === text)
  if (place === 'host' || isInItsHost) return isInItsHost
  return gpu.label === text || isInGpu(word, gpu) || isPlace(text, host, gpu)
}

/** Those of the last day, and the one that its reason names. */
function xidsOf({ events, availability_reason: reason }: Gpu): string[] {
  return [...(events ?? []).map(({ code }) => String(code)), ...(reason ? [...reason.matchAll(NAMED_XID)].map((found) => found[1]!) : [])]
}

function isInGpu(word: Word, gpu: Gpu): boolean {
  const { text } = word
  // A state that is still being typed fits already: "fre".
  if (isInModel(word, gpu) || (word.amount !== null && fits(word.amount, gpu.memory_total_bytes)) || isInUsers(word, gpu) || gpu.availability.startsWith(text) || isInUuid(text, gpu)) return true
  return text.length >= SHORTEST_OF_COMMAND && (isInCommands(word, gpu) || isInReasons(word, gpu))
}

/** Whether a word of what is wrong with it begins with it. */
function isInReasons({ text, commands }: Word, { availability_reason: why, health_reason: how }: Gpu): boolean {
  return (why != null && remembered(commands, why, text, beginsWord)) || (how != null && remembered(commands, how, text, beginsWord))
}

function isInNote(text: string, { note }: Host): boolean {
  return note ? lower(note.text).includes(text) : false
}

function isInHost(text: string, host: Host): boolean {
  if (lower(host.name).includes(text) || (host.display_name !== host.name && lower(host.display_name).includes(text))) return true
  for (const address of host.addresses ?? []) if (isAddress(text, address)) return true
  if (text.length >= SHORTEST_OF_COMMAND) for (const problem of host.problems) if (beginsWord(text, problem.toLowerCase())) return true
  for (const key of Object.keys(host.labels)) if (isLabel(text, lower(key), lower(host.labels[key]!))) return true
  return false
}

/** `rack=r01` is all of the value, `rack:r0` a part of it. */
function isLabel(text: string, key: string, value: string): boolean {
  if (value.includes(text)) return true
  const sign = text.startsWith(key) ? text[key.length] : undefined
  const rest = text.slice(key.length + 1)
  return (sign === '=' && rest === value) || (sign === ':' && value.includes(rest))
}

/** All of it, or its beginning: `10.0.3`. A shorter one begins many, and may be the label of a GPU: `0.5`. */
function isAddress(text: string, address: string): boolean {
  if (address.length < text.length || address.slice(0, text.length).toLowerCase() !== text) return false
  return address.length === text.length || (text.match(/[.:]/g) ?? []).length > 1
}

/** `gpu05:3`, also with the first part of the host's name where that goes on with a dot. */
function isPlace(text: string, host: Host, gpu: Gpu): boolean {
  const colon = text.lastIndexOf(':')
  if (colon < 0 || gpu.label !== text.slice(colon + 1)) return false
  const [name, known] = [text.slice(0, colon), lower(host.name)]
  return name === known || name === known.split('.')[0] || name === lower(host.display_name)
}

/** Whether a word of a command begins with it. */
function isInCommands({ text, commands }: Word, { processes }: Gpu): boolean {
  if (processes) for (const { command } of processes) if (command != null && remembered(commands, command, text, beginsWord)) return true
  return false
}

function beginsWord(text: string, command: string): boolean {
  let at = command.indexOf(text)
  while (at > 0 && /[\p{L}\p{N}]/u.test(command[at - 1] ?? '')) at = command.indexOf(text, at + 1)
  return at >= 0
}

/** Most hosts have one model: the last answer is often the next. */
function isInModel({ text, place, amount, names, last }: Word, { name, display_name: shown, vendor }: Gpu): boolean {
  if (name === last.name && shown === last.shown) return last.answer
  last.name = name
  last.shown = shown
  const test = amount === null || place === 'model' ? includes : includesAmount
  const isVendor = place === 'any' && text.length >= SHORTEST_VENDOR && vendor.startsWith(text)
  return (last.answer = isVendor || remembered(names, name, text, test) || (shown !== name && remembered(names, shown, text, test)))
}

function isInUsers({ text, names }: Word, { users }: Gpu): boolean {
  for (const user of users) if (remembered(names, user, text, includes)) return true
  return false
}

const includes = (text: string, inside: string): boolean => inside.includes(text)
const includesAmount = (text: string, name: string): boolean => name.replace(BOARD, '').includes(text)

/** A search may stay for days, and commands are new every day. */
const MOST_REMEMBERED = 50_000

/** Names and commands repeat a thousandfold: each is looked at once for a word. */
function remembered(answers: Map<string, boolean>, inside: string, text: string, test: (text: string, inside: string) => boolean): boolean {
  let answer = answers.get(inside)
  if (answer !== undefined) return answer
  if (answers.size > MOST_REMEMBERED) answers.clear()
  answers.set(inside, (answer = test(text, inside.toLowerCase())))
  return answer
}

/** Short text stands in many a UUID by chance: "4090" is a model. */
function isInUuid(text: string, gpu: Gpu): boolean {
  return text.length >= 8 && gpu.uuid.toLowerCase().includes(text)
}

/** The search text with a state added, or taken out where it stands already. Asking for it ends its exclusion. */
export function toggleState(text: string, state: Availability): string {
  const parts = text.split(/\s+/).filter((part) => part !== '' && part.toLowerCase() !== `-${state}`)
  const without = parts.filter((part) => part.toLowerCase() !== state)
  return (without.length < parts.length ? without : [state, ...parts]).join(' ')
}
