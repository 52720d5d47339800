/** What may have been meant where nothing fits a search. src/gpudeck/views/filter.py suggests the same. */
import type { Host } from '../api/types'
import { lower } from '../ui/format'
import { KEYWORDS, matchesBareHost, matchesGpu, parseQuery, phrasesOf, tokens } from './query'

const PLACES = ['host', 'model', 'user', 'command', 'xid']
const SHORT = 3

/** The nearest known word for each that fits nothing by itself; `usr:ann` becomes `user:ann`. `isUnfit`: nothing fits all
 * of the text. */
export function suggest(hosts: readonly Host[], text: string, isUnfit = false): { word: string; near: string }[] {
  const words = tokens(text, phrasesOf(hosts))
  return words.flatMap((word) => {
    const bare = word.replace(/^-/, '')
    const isKnown = isUnfit && words.length === 1 && word === bare ? isKeyword(word) : fitsAnything(hosts, bare)
    const near = isKnown ? null : nearest(hosts, bare)
    return near === null ? [] : [{ word, near: word.startsWith('-') ? `-${near}` : near }]
  })
}

/** The search with those words in their place. */
export function corrected(text: string, found: readonly { word: string; near: string }[]): string {
  return found.reduce((said, { word, near }) => said.replace(new RegExp(`(^|\\s)${word.replace(/[^\w\s]/g, '\\$&')}(?=\\s|$)`, 'i'), `$1${near}`), text.trim())
}

function fitsAnything(hosts: readonly Host[], word: string): boolean {
  const query = parseQuery(word)
  return isKeyword(word) || hosts.some((host) => (host.gpus.length === 0 ? matchesBareHost(query, host) : host.gpus.some((gpu) => matchesGpu(query, host, gpu))))
}

const isKeyword = (word: string): boolean => KEYWORDS.includes(word) || parseQuery(word).memory.length > 0

/** Of words, users, hosts and labels; of keys, where it has one. */
function nearest(hosts: readonly Host[], word: string): string | null {
  const names = hosts.map(({ name }) => lower(name))
  const [keys, values, users] = [new Set<string>(), new Set<string>(), new Set<string>()]
  for (const { labels, gpus } of hosts) {
    for (const key of Object.keys(labels)) {
      keys.add(key)
      values.add(labels[key]!)
    }
    for (const gpu of gpus) for (const user of gpu.users) users.add(user)
  }
  const colon = word.indexOf(':')
  if (colon > 0 && colon < word.length - 1) {
    const near = closest(word.slice(0, colon), [...PLACES, ...sorted(keys), ...names])
    return near === null || word.startsWith(`${near}:`) ? null : `${near}${word.slice(colon)}`
  }
  return closest(word, [...KEYWORDS, ...sorted(users), ...names, ...sorted(values)])
}

const sorted = (words: ReadonlySet<string>): string[] => [...words].map((word) => word.toLowerCase()).sort()

/** At most two edits away, of a short word one; the first of those that are as near. */
function closest(word: string, known: readonly string[]): string | null {
  let most = word.length <= SHORT ? 1 : 2
  let found: string | null = null
  for (const one of new Set(known)) {
    const edits = countEdits(word, one, most)
    if (edits <= most) [found, most] = [one, edits - 1]
  }
  return found
}

/** Letters that are added, left out, changed, or swapped with their neighbour; more than `most` is not counted. */
function countEdits(one: string, other: string, most: number): number {
  if (Math.abs(one.length - other.length) > most) return most + 1
  let last: number[] = []
  let row = Array.from({ length: other.length + 1 }, (_, at) => at)
  for (let at = 0; at < one.length; at += 1) {
    const before = row
    row = [at + 1]
    for (let place = 0; place < other.length; place += 1) {
      const isSwapped = at > 0 && place > 0 && one[at] === other[place - 1] && one[at - 1] === other[place]
      const swapped = isSwapped ? last[place - 1]! + 1 : Infinity
      row.push(Math.min(before[place]! + Number(one[at] !== other[place]), before[place + 1]! + 1, row[place]! + 1, swapped))
    }
    last = before
  }
  return row.at(-1) ?? 0
}
